"""The controlling side of the fork server: the reports that it gets, in which order, and that nothing is lost."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpbench.errors import LaunchError, ServerGoneError
from ddpbench.records import LaunchDir, LaunchRequest
from ddpbench.runtime import running_server
from ddpbench.runtime import server as server_module
from ddpbench.runtime.running_server import STOPPED_LOOKS, RunningServer
from ddpbench.runtime.server import ASKED, ServerProcess
from ddpbench.spec import Case

Connected = tuple[ServerProcess, socket.socket]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connected]:
    """Return a client whose server is this test."""
    ours, theirs = socket.socketpair()
    running = running_on(ours)
    monkeypatch.setattr(server_module, "start_server", lambda *_, **__: running)
    monkeypatch.setattr(running, "end", lambda: None)
    with ours, theirs, ServerProcess({}, Path("/nonexistent/server.log")) as client:
        yield client, theirs


def running_on(connection: socket.socket, process: Any = None) -> RunningServer:
    return RunningServer(
        process if process is not None else cast(Any, SimpleNamespace(pid=os.getpid())),
        connection,
        Path("/nonexistent/server.log"),
        log_stays=True,
        waiting=lambda: None,
        oom_before=4,
    )


def say(server: socket.socket, *events: dict[str, object]) -> None:
    server.sendall(b"".join(json.dumps(event).encode() + b"\n" for event in events))


def launch(client: ServerProcess, lane: int = 0) -> None:
    """Ask for a launch of a case whose modules the server has. The answer must have been said before."""
    case = Case(workload="mlp:small", strategy="single")
    client._running.has.add((case.strategy, case.workload))
    asked = LaunchRequest(case=case, purpose="measure", round=0, measured_s=0.1)
    client.lane(lane).launch([{}], LaunchDir(Path("/nonexistent")), asked)


class _AskedToWaitError(Exception):
    """Raised by this test's `waiting`."""


def test_only_who_waits_for_the_server_itself_shows_life_beside(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a rank runs, its watcher reports its state: an older state in between would hide its steps."""

    def waiting() -> None:
        raise _AskedToWaitError

    client, _ = connected
    monkeypatch.setattr(client._running, "_waiting", waiting)
    assert client.events(0.0) == []
    with pytest.raises(_AskedToWaitError):
        client._running.ask("started", do="probe")


def test_a_rank_that_ends_before_its_start_is_told_is_not_lost(connected: Connected) -> None:
    client, server = connected
    ended = {"event": "exited", "rank": 1, "pid": 8, "code": 1, "cpu_s": 0.1}
    say(server, {"event": "started", "pids": [7, 8]}, ended)
    launch(client)
    assert client.pids == (7, 8)
    assert [event["rank"] for event in client.events(0.0)] == [1]
    assert client.events(0.0) == []


def test_a_rank_that_was_given_up_is_not_heard_of_in_the_next_launch(connected: Connected) -> None:
    client, server = connected
    late = {"event": "exited", "rank": 0, "pid": 3, "code": -9, "cpu_s": 0.1}
    say(server, {"event": "started", "pids": [7]}, late)
    launch(client)
    assert client.events(0.0) == []
    own = {**late, "pid": 7, "code": 0}
    say(server, late, own)
    assert client.events(0.1) == [own]


def test_each_of_two_launches_hears_of_its_own_ranks(connected: Connected) -> None:
    client, server = connected
    ended = [{"event": "exited", "rank": 0, "pid": pid, "code": 0, "cpu_s": 0.1} for pid in (7, 8)]
    say(server, {"event": "started", "pids": [7]})
    launch(client)
    say(
        server, ended[0], {"event": "started", "pids": [8]}
    )  # the first one's end comes before the second's start
    launch(client, 1)
    first, second = client.lane(0), client.lane(1)
    say(server, ended[1])
    assert second.events(0.1) == []
    assert second.events(0.1) == [ended[1]]
    assert first.events(0.0) == [ended[0]]


def test_every_launch_hears_that_their_server_was_ended(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_server, "kill_all", lambda _: None)  # the server is this process
    client, server = connected
    for lane in (0, 1):
        say(server, {"event": "started", "pids": [lane + 7]})
        launch(client, lane)
    with pytest.raises(ServerGoneError, match="was stopped, by SIGSTOP"):
        client._running.give_up_stopped()
    client._running._connection.close()  # as `end` does
    for lane in (1, 0, 1):
        with pytest.raises(ServerGoneError, match="was stopped, by SIGSTOP"):
            client.lane(lane).events(0.0)


def test_half_a_line_waits_for_its_other_half(connected: Connected) -> None:
    client, server = connected
    say(server, {"event": "started", "pids": [7]})
    launch(client)
    server.sendall(b'{"event": "exi')
    assert client.events(0.1) == []
    server.sendall(b'ted", "rank": 0, "pid": 7, "code": 0, "cpu_s": 0}\n')
    assert [event["event"] for event in client.events(0.1)] == ["exited"]


def test_a_refusal_is_an_error_with_its_reason(connected: Connected) -> None:
    client, server = connected
    say(server, {"event": "refused", "reason": "the fork server has 2 threads", "imported": False})
    with pytest.raises(LaunchError, match="2 threads"):
        client._running.ask("started", do="launch")


@pytest.mark.parametrize("what", ["launch", "import"])
def test_a_server_whose_answer_nobody_waited_for_serves_no_more(
    connected: Connected, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its answer would be taken for that of the next launch, whose ranks it is not about."""
    client, _ = connected
    ended: list[bool] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client._running, "_waiting", interrupted)
    monkeypatch.setattr(client._running, "end", lambda: ended.append(True))
    with pytest.raises(KeyboardInterrupt):
        client._running.ask("started" if what == "launch" else "imported", do=what)
    assert ended == [True]


def test_a_server_that_an_import_spoilt_is_replaced_by_one_that_does_not_import(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = connected
    spoilt = {"event": "refused", "reason": "the fork server has 2 threads", "imported": True}
    others: list[socket.socket] = []
    done: list[str] = []
    case = Case(workload="hf:bert-tiny", strategy="lightning")

    def start() -> RunningServer:
        done.append("start")
        ours, theirs = socket.socketpair()
        say(theirs, {"event": "started", "pids": [7]})
        others.extend((theirs, ours))
        another = running_on(ours)
        monkeypatch.setattr(another, "end", lambda: None)
        return another

    def launch() -> bool:
        request = LaunchRequest(case=case, purpose="measure")
        return client.launch([{ASKED: "5", "RANK": "0"}], LaunchDir(Path("/none")), request)

    def asked(of: socket.socket) -> list[tuple[str, bool]]:
        """Return the requests, and for ranks whether their start is counted from a later moment."""
        lines = of.recv(1 << 16).decode().splitlines()
        return [
            (said["do"], any(int(rank["env"][ASKED]) > 5 for rank in said.get("ranks", ())))
            for said in map(json.loads, lines)
        ]

    monkeypatch.setattr(server_module, "_spoiling", set())
    monkeypatch.setattr(client._running, "end", lambda: done.append("end"))
    monkeypatch.setattr(client, "_start", start)
    say(server, spoilt)
    assert launch(), "what came before is no part of the launch"
    assert (client.pids, done) == ((7,), ["end", "start"])
    assert asked(server) == [("import", False)]
    assert asked(others[0]) == [("launch", True)]
    say(others[0], {"event": "started", "pids": [8]})
    assert not launch()
    assert asked(others[0]) == [("launch", False)], "the next launch knows"
    case = Case(workload="hf:bert-tiny", strategy="single")
    say(others[0], {"event": "imported", "new": True})
    later = threading.Timer(0.2, say, (others[0], {"event": "started", "pids": [9]}))
    later.start()
    assert launch(), "nor is what it imports"
    later.join()
    assert asked(others[0]) == [("import", False), ("launch", True)]
    say(others[0], {"event": "started", "pids": [9]})
    assert not launch()
    assert asked(others[0]) == [("launch", False)], "it has it now"
    assert done == ["end", "start"]
    for one in others:
        one.close()


def test_a_server_that_stays_stopped_is_ended_and_named(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that continues meanwhile is not ended."""
    client, _ = connected
    monkeypatch.setattr(running_server, "_LOOK_S", 0.0)
    with subprocess.Popen(["sleep", "60"]) as stopped:
        monkeypatch.setattr(client, "_running", running_on(client._running._connection, stopped))
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
            stopped.send_signal(number)
            while client.is_stopped != (number == signal.SIGSTOP):
                pass
            for _ in range(STOPPED_LOOKS - 1):
                assert client.events(0.0) == []
        with pytest.raises(ServerGoneError, match=rf"process {stopped.pid}\) was stopped, by SIGSTOP"):
            client._running.ask("started", do="launch")
        assert stopped.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kills", "quota", "said"),
    [
        (1, 512 << 20, "this control group ran out of its 512 MiB of memory: use a smaller batch or model"),
        (1, None, "this machine ran out of memory: use a smaller batch or model"),
        (0, None, "was killed by SIGKILL, as the kernel does where memory runs out"),
    ],
)
def test_a_server_that_is_gone_is_told_from_one_that_refuses(
    connected: Connected, monkeypatch: pytest.MonkeyPatch, kills: int, quota: int | None, said: str
) -> None:
    client, server = connected
    monkeypatch.setattr(running_server, "oom_kills", lambda: 4 + kills)
    monkeypatch.setattr("ddpbench.machine.disturbance.memory_quota", lambda: quota)

    class Ended:
        def wait(self, timeout: float) -> int:
            return -9

    monkeypatch.setattr(client._running, "_process", Ended())
    server.close()
    with pytest.raises(ServerGoneError, match="the fork server was killed by SIGKILL") as gone:
        client.events(0.1)
    assert gone.value.killed
    assert said in str(gone.value)


def test_a_server_that_is_stopped_before_it_is_born_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            os.kill(self.pid, signal.SIGSTOP)

    monkeypatch.setattr(running_server, "STOPPED_LOOKS", 2)
    monkeypatch.setattr(subprocess, "Popen", Stopped)
    with pytest.raises(ServerGoneError, match=r"was stopped, by SIGSTOP or a debugger"):
        ServerProcess({}, tmp_path / "server.log")


def test_a_server_is_heard_in_a_process_with_many_open_files() -> None:
    """A user's test suite may have opened more files than `select` can wait for."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip("a process may open 2048 files only as root here")
    ours, theirs = socket.socketpair()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, before[0]), before[1]))
        far = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 1500))
        with ours, theirs, far:
            say(theirs, {"event": "born", "pid": 1})
            assert running_on(far).hear(1.0) == [{"event": "born", "pid": 1}]
            assert running_on(far).hear(0.0) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
