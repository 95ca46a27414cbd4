"""The fork server's own end: what it says when it cannot serve, and what it looks at before it forks."""

from __future__ import annotations

import json
import mmap
import os
import socket
from pathlib import Path

import pytest

from ddpbench.errors import ServerGoneError
from ddpbench.guard import Traces
from ddpbench.machine.server import ServerProcess
from ddpbench.records import LaunchRequest
from ddpbench.records.heartbeat import PAGE_BYTES
from ddpbench.spec import Case
from ddpbench.worker import server


def test_a_torch_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is missing')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ServerGoneError, match=r"exit code 1 .*libtorch.so is missing"):
        ServerProcess({}, tmp_path / "server.log")


def test_a_thread_that_a_workloads_import_started_refuses_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[Case] = []

    def forkable() -> None:
        if imported:
            raise server._UnforkableError("2 threads")

    def fork() -> int:
        raise AssertionError("forked with a thread")

    monkeypatch.setattr(server, "_import_for", imported.append)
    monkeypatch.setattr(server, "_assert_forkable", forkable)
    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    with ours, theirs, mmap.mmap(-1, PAGE_BYTES) as page:
        request = LaunchRequest(case=Case(workload="hf:bert-tiny", strategy="single"), purpose="measure")
        asked = {"do": "launch", "directory": "/none", "ranks": [{"env": {}}], "request": request.to_json()}
        ours.sendall(json.dumps(asked).encode() + b"\n")
        assert server.ForkServer(theirs, page, Traces(tmp_path))._receive()
        assert json.loads(ours.recv(4096)) == {"event": "refused", "reason": "2 threads"}
    assert [case.workload for case in imported] == ["hf:bert-tiny"]
