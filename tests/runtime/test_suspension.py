"""Processes of waiting sides are stopped, and continue before their side gets the turn."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddpbench.guard import is_stopped
from ddpbench.runtime.suspension import Suspension
from ddpbench.runtime.turnstile import Turn, Turnstile, TurnstileGoneError

PATIENCE_S = 30.0
JOINS = """
import sys, time
from ddpbench.runtime.turnstile import Turn
turn = Turn(sys.argv[1])
print("joins", flush=True)
turn.join()
time.sleep(600)
"""


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def turnstile() -> Iterator[Turnstile]:
    made = Turnstile(random.Random(1), stops=True)
    yield made
    made.close()


@pytest.fixture
def joined() -> Iterator[Callable[[Turnstile, str], subprocess.Popen[str]]]:
    with ExitStack() as ends:

        def join(turnstile: Turnstile, side: str) -> subprocess.Popen[str]:
            held = turnstile.suspension
            before = len(held._joined)
            rank = subprocess.Popen(
                [sys.executable, "-c", JOINS, turnstile.address(side)], stdout=subprocess.PIPE, text=True
            )
            ends.callback(rank.wait)
            ends.callback(rank.kill)
            assert rank.stdout is not None
            ends.callback(rank.stdout.close)
            assert rank.stdout.readline() == "joins\n"
            if held._stops:
                until(lambda: len(held._joined) > before)
            return rank

        yield join


Join = Callable[[Turnstile, str], "subprocess.Popen[str]"]


def test_a_rank_is_stopped_while_its_side_waits_and_at_no_other_time(
    turnstile: Turnstile, joined: Join
) -> None:
    turnstile.begin(["a", "b"])
    a, b = Turn(turnstile.address("a")), Turn(turnstile.address("b"))
    ranks = {side: joined(turnstile, side) for side in ("a", "b")}
    late = None
    assert not any(is_stopped(rank.pid) for rank in ranks.values()), "before the first request"
    a._socket.sendall(b"offer a\n")
    until(lambda: turnstile.suspension.is_stopped("a"))
    until(lambda: is_stopped(ranks["a"].pid))
    assert not is_stopped(ranks["b"].pid)
    late = joined(turnstile, "a")
    until(lambda: is_stopped(late.pid))
    b._socket.sendall(b"offer b\n")
    until(lambda: turnstile.holder != "")
    for holder, other in ((turnstile.holder, {"a": "b", "b": "a"}[turnstile.holder]),) * 2:
        until(lambda: is_stopped(ranks[other].pid))  # noqa: B023
        assert not is_stopped(ranks[holder].pid)
        turnstile.leave("nobody")
        assert turnstile.suspension.is_stopped(other)
        assert not turnstile.suspension.is_stopped(holder)
    turnstile.leave(turnstile.holder)
    until(lambda: not any(is_stopped(rank.pid) for rank in (*ranks.values(), late)))
    a.close()
    b.close()


def test_a_killed_rank_is_forgotten_and_the_others_go_on(turnstile: Turnstile, joined: Join) -> None:
    turnstile.begin(["a", "b"])
    a = Turn(turnstile.address("a"))
    first, second = joined(turnstile, "a"), joined(turnstile, "a")
    a._socket.sendall(b"offer a\n")
    until(lambda: is_stopped(first.pid) and is_stopped(second.pid))
    first.kill()
    assert first.wait(PATIENCE_S) == -signal.SIGKILL, "a stopped process can be killed"
    held = turnstile.suspension
    until(lambda: len(held._joined) == 1)
    turnstile.leave("b")
    until(lambda: turnstile.holder == "a")
    until(lambda: not is_stopped(second.pid))
    a.close()


def test_ranks_go_on_when_the_turnstile_is_closed(joined: Join) -> None:
    turnstile = Turnstile(stops=True)
    turnstile.begin(["a", "b"])
    a = Turn(turnstile.address("a"))
    rank = joined(turnstile, "a")
    a._socket.sendall(b"offer a\n")
    until(lambda: is_stopped(rank.pid))
    turnstile.close()
    until(lambda: not is_stopped(rank.pid))
    with pytest.raises(TurnstileGoneError):
        a.offer()
    with pytest.raises(TurnstileGoneError):
        a.join()
    a.close()


def test_sides_of_a_comparison_are_not_stopped(joined: Join) -> None:
    turnstile = Turnstile()
    turn = Turn(turnstile.address("a"))
    turn.join()
    other = Turn(turnstile.address("b"))
    other.take()
    turn._socket.sendall(b"offer a\n")
    until(lambda: bool(turnstile._waiting))
    assert not turnstile.suspension.is_stopped("a")
    assert not is_stopped(os.getpid())
    turn.close()
    other.close()
    turnstile.close()


def test_this_process_is_never_stopped() -> None:
    here, there = socket.socketpair()
    held = Suspension()
    held.join("a", here)
    held.stop("a")
    assert not held._joined
    here.close()
    there.close()
    held.close()


@pytest.mark.parametrize("missing", ["open", "signal", "open in this build", "signal in this build"])
def test_without_descriptors_of_processes_waiting_ranks_go_on_running(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    module, name = (os, "pidfd_open") if missing.startswith("open") else (signal, "pidfd_send_signal")
    if missing.endswith("build"):
        monkeypatch.delattr(module, name)
    else:
        monkeypatch.setattr(module, name, refused)
    listening, connection = socket.socket(socket.AF_UNIX), None
    listening.bind(str(tmp_path / "s"))
    listening.listen()
    rank = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); time.sleep(600)",
            str(tmp_path / "s"),
        ]
    )
    connection, _ = listening.accept()
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    held = Suspension()
    held.join("a", connection)
    assert len(os.listdir("/proc/self/fd")) == open_before  # noqa: PTH208
    held.stop("a")
    held.go_on("a")
    assert not is_stopped(rank.pid)
    held.close()
    connection.close()
    listening.close()
    rank.kill()
    rank.wait()
