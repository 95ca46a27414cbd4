"""The processes that a test starts: found by a tag that they inherit, so that none is left behind."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from tests import lasting

TAG = f"{os.getpid()}-{time.time_ns()}"
"""A tag that other people's sweeps do not have."""


AS_IN_A_TERMINAL = ("env", "--default-signal=HUP,INT,TERM")
"""Prefix of a command that signals are to end: under nohup or with `&` a process would inherit that they are
ignored."""


def started() -> list[psutil.Process]:
    """Return the live ones: sweeps, fork servers, ranks, holders of fabrics, loader workers and their servers.

    Idle fork servers that wait for the next sweep (`tests.lasting`) are left out.
    """
    found: list[psutil.Process] = []
    idle = lasting.idle_processes()
    for process in psutil.process_iter(["status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE or process.pid in {os.getpid(), *idle}:
            continue
        with contextlib.suppress(psutil.Error):
            if process.environ().get("DDPBENCH_TEST_TAG") == TAG:
                found.append(process)
    return found


def listening() -> set[tuple[str, str]]:
    """Return the addresses at which they accept connections, each with its owner: a launcher's or ddpbench's."""
    found: set[tuple[str, str]] = set()
    for process in started():
        with contextlib.suppress(psutil.Error):
            whose = "torchrun" if "torch.distributed.run" in process.cmdline() else "ddpbench"
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN or (one.type == socket.SOCK_DGRAM and not one.raddr):
                    found.add((whose, one.laddr.ip))
    return found


def alive(pids: Iterable[int], within_s: float = 20.0) -> list[int]:
    """Return those that still run after that time; a process that has ended and waits to be reaped does not run."""
    left = list(pids)
    deadline = time.monotonic() + within_s
    while left := [pid for pid in left if _runs(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test that leaves a process running; sweeps of other tests may run at the same time."""
    monkeypatch.setenv("DDPBENCH_TEST_TAG", TAG)
    yield
    deadline = time.monotonic() + 20
    while left := started():
        if time.monotonic() > deadline:
            for process in left:
                process.kill()
            pytest.fail(f"processes left behind: {left}")
        time.sleep(0.05)


def python_path(*folders: Path) -> str:
    """Return a PYTHONPATH with these first, for processes that a test starts, which do less than usual."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([given] if given else [])])
