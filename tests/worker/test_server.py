"""The fork server's side: its messages when it cannot serve, and its checks before it forks."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddpbench.errors import ServerGoneError
from ddpbench.guard import Traces
from ddpbench.records import LaunchRequest
from ddpbench.records.heartbeat import PAGE_BYTES
from ddpbench.runtime.server import ServerProcess
from ddpbench.spec import Case
from ddpbench.worker import server
from ddpbench.workloads import load_workload


def test_a_torch_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is missing')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ServerGoneError, match=r"exit code 1 .*libtorch.so is missing"):
        ServerProcess({}, tmp_path / "server.log")


def test_a_thread_that_a_workloads_import_started_refuses_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[Case] = []

    def forkable(**options: bool) -> None:
        if imported:
            raise server._UnforkableError("2 threads", options["imported"])

    monkeypatch.setattr(server, "_import_for", imported.append)
    monkeypatch.setattr(server, "_assert_forkable", forkable)
    ours, theirs = socket.socketpair()
    with ours, theirs, mmap.mmap(-1, PAGE_BYTES) as page:
        asked = {"do": "import", "case": Case(workload="hf:bert-tiny", strategy="single").to_json()}
        ours.sendall(json.dumps(asked).encode() + b"\n")
        assert server.ForkServer(theirs, page, Traces(tmp_path))._receive()
        assert json.loads(ours.recv(4096)) == {"event": "refused", "reason": "2 threads", "imported": True}
    assert [case.workload for case in imported] == ["hf:bert-tiny"]


def test_a_launch_is_refused_where_a_process_cannot_be_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unforkable(*, imported: bool = False) -> None:
        raise server._UnforkableError("2 threads", imported)

    def fork() -> int:
        raise AssertionError("forked with a thread")

    monkeypatch.setattr(server, "_assert_forkable", unforkable)
    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    with ours, theirs, mmap.mmap(-1, PAGE_BYTES) as page:
        request = LaunchRequest(case=Case(workload="mlp:small", strategy="single"), purpose="measure")
        asked = {
            "do": "launch",
            "directory": "/none",
            "ranks": [{"env": {}}],
            "request": request.to_json(),
            "lane": 0,
        }
        ours.sendall(json.dumps(asked).encode() + b"\n")
        assert server.ForkServer(theirs, page, Traces(tmp_path))._receive()
        assert json.loads(ours.recv(4096)) == {"event": "refused", "reason": "2 threads", "imported": False}


LEAVES_A_THREAD = """
import os, sys, threading
with open({processes!r}, "a") as file:
    print(os.getpid(), file=file)
threading.Thread(target=threading.Event().wait, daemon=True).start()
sys.path.remove({folder!r})
del sys.modules["transformers"]
import transformers
"""


@pytest.mark.thorough
def test_what_leaves_a_thread_when_imported_is_imported_by_the_ranks(tmp_path: Path) -> None:
    """Some imports do, depending on installed packages: another fork server leaves them to its ranks, which train."""
    processes = tmp_path / "processes"
    module = LEAVES_A_THREAD.format(folder=str(tmp_path), processes=str(processes))
    (tmp_path / "transformers.py").write_text(module, encoding="utf-8")
    asked = ["verify", "--strategy", "single", "--workload", "hf:bert-tiny", "--world-size", "1"]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "ddpbench", *asked],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 proved, 0 not" in done.stdout, done.stdout + done.stderr
    server, rank = processes.read_text(encoding="utf-8").split()
    assert server != rank


@pytest.mark.parametrize("imported", [False, True])
def test_a_process_with_a_thread_or_a_context_is_not_forked(
    monkeypatch: pytest.MonkeyPatch, imported: bool
) -> None:
    left = threading.Event()
    thread = threading.Thread(target=left.wait, daemon=True)
    thread.start()
    when = "for a case" if imported else "at start"
    with pytest.raises(server._UnforkableError, match=f"threads; something imported {when}") as caught:
        server._assert_forkable(imported=imported)
    assert caught.value.args[1] is imported
    left.set()
    thread.join()
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    server._assert_forkable(imported=imported)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(server._UnforkableError, match=f"CUDA context; something imported {when}") as caught:
        server._assert_forkable(imported=imported)
    assert caught.value.args[1] is imported


def test_while_a_server_imports_torch_asks_the_driver_for_gpus_and_ranks_ask_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str | None] = []
    noting = SimpleNamespace(import_module=lambda _: seen.append(os.environ.get(server._ASKS_DRIVER)))
    monkeypatch.setattr(server, "importlib", noting)
    needed = load_workload("hf:bert-tiny").imports
    for name in needed:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for given in (None, "0"):
        if given is not None:
            monkeypatch.setenv(server._ASKS_DRIVER, given)
        server._import_for(Case(workload="hf:bert-tiny", strategy="single"))
        assert os.environ.get(server._ASKS_DRIVER) == given
        server.preload()
        assert os.environ.get(server._ASKS_DRIVER) == given
    assert len(seen) > 2 * len(needed)
    assert set(seen) == {"1"}


BURN_S = 0.3


def test_what_a_rank_started_is_counted_with_its_processor_time(tmp_path: Path) -> None:
    """Loader workers are a rank's grandchildren, and end after it: two launches, each with one of them."""
    code = f"""
import json, mmap, os, socket, sys, time
from pathlib import Path
from ddpbench.guard import Traces, adopt_orphans
from ddpbench.worker import server
adopt_orphans()
ours, theirs = socket.socketpair()
one = server.ForkServer(theirs, mmap.mmap(-1, {PAGE_BYTES}), Traces(Path({str(tmp_path)!r})))
for _ in range(2):
    one._begin(0)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        read, write = os.pipe()
        if os.fork() == 0 and os.fork() == 0:
            while time.process_time() < {BURN_S}:
                pass
            os.write(write, b"11")  # the process between reads, too
            time.sleep(60)
        os.read(read, 1)
        os._exit(0)
    one._ranks[pid] = server._Forked(0, 0)
    while one._ranks:
        one._reap()
        time.sleep(0.01)
    print(json.loads(ours.recv(4096))["cpu_s"])
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    for spent_s in map(float, ended.stdout.split()):
        assert BURN_S <= spent_s < 2 * BURN_S
