"""Fork servers of tests are forked from a process that has imported torch already, one for each environment.

Importing it takes a core two seconds and more, and the tests start hundreds of servers. What is forked is as what would
have been started: the same environment, folder and descriptors, the same main module for who asks for it; and the
test's own process is its parent. Its command line is another. Tests that ask for `cold_servers`, and what tests start
as a command of its own, have servers as a user has.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from ddpbench.guard import adopt_orphans, die_with_parent
from ddpbench.machine.server import start_process
from ddpbench.worker import server as worker_server
from tests import processes

KEPT = 6
"""So many environments' are kept at a time."""
_LINE = "import sys; from tests import warm_servers; warm_servers.serve(int(sys.argv[1]))"
_PR_SET_CHILD_SUBREAPER = 36
_HEARD_BYTES = 1 << 20


class Adopted:
    """As much of a `subprocess.Popen` as is used, of a process that another has forked for this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        pause_s = 0.0005
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class WarmProcess:
    """A process that has imported what a fork server imports, and becomes one as often as it is asked to."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # The last words are for those that look for fork servers.
                [sys.executable, "-P", "-c", _LINE, str(theirs.fileno()), "ddpbench.worker", "--serve"],
                env=env,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # where it fails, a server that is started cold says why
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        processes.WARM.add(self._process.pid)

    def fork(self, argv: Sequence[str], output: IO[bytes], passed: Sequence[int]) -> Adopted | None:
        """Return a new fork server's guard, a child of this process; None where torch could not be imported."""
        adopt_orphans()
        try:
            asked = json.dumps({"argv": argv, "folder": str(Path.cwd())}).encode()
            socket.send_fds(self._connection, [asked], [output.fileno(), *passed])
            pid = int(self._connection.recv(64) or b"0")
        except ConnectionError:
            pid = 0
        finally:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return Adopted(pid) if pid else None

    def close(self) -> None:
        # A fork of this process may hold a copy of the connection, which closing leaves open.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._process.wait(timeout=20)
        processes.WARM.discard(self._process.pid)


def _inherited() -> list[Any]:
    """Return what a process has from the one that starts it, besides its environment."""
    kinds = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits = [resource.getrlimit(getattr(resource, name)) for name in kinds]
    spaces = [str(path.readlink()) for path in sorted(Path("/proc/self/ns").iterdir())]
    names = ("Umask", "SigBlk", "SigIgn", "CapEff", "Seccomp")
    status = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(names)]
    return [str(Path.cwd()), limits, spaces, status, sorted(os.sched_getaffinity(0)), os.nice(0)]


class WarmServers:
    """A warm process for each environment, those that were used last."""

    def __init__(self) -> None:
        self._warm: dict[str, WarmProcess] = {}

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], passed: Sequence[int]
    ) -> Adopted | subprocess.Popen[bytes]:
        """Stands in for `ddpbench.machine.server.start_process`."""
        given = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
        key = json.dumps([_inherited(), given], sort_keys=True)
        warm = self._warm.pop(key, None) or WarmProcess(given)
        self._warm[key] = warm
        if len(self._warm) > KEPT:
            self._warm.pop(next(iter(self._warm))).close()
        return warm.fork(argv, output, passed) or start_process(argv, env, output, passed)

    def close(self) -> None:
        for warm in self._warm.values():
            warm.close()


@contextlib.contextmanager
def warm_servers() -> Iterator[WarmServers]:
    """Within it this process's fork servers are forked from a warm process."""
    with ExitStack() as stack:
        servers = WarmServers()
        stack.callback(servers.close)
        yield servers


def serve(descriptor: int) -> None:
    """Forks servers for who is at the other end of a socket, until it is closed."""
    die_with_parent(os.getppid())
    worker_server._preload()
    connection = socket.socket(fileno=descriptor)
    while True:
        asked, given, _, _ = socket.recv_fds(connection, _HEARD_BYTES, 8)
        if not asked:
            return
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            _fork_and_leave(connection, json.loads(asked), given, (read, write))
        os.waitpid(between, 0)  # now the server is a child of who asked for it
        pid = os.read(read, 64)
        for number in (read, write, *given):
            os.close(number)
        connection.sendall(pid)


def _fork_and_leave(
    connection: socket.socket, asked: dict[str, Any], given: list[int], pipe: tuple[int, int]
) -> None:
    forked_by = os.getpid()
    pid = os.fork()
    if pid:
        os.write(pipe[1], str(pid).encode())
        os._exit(0)
    try:
        while os.getppid() == forked_by:
            time.sleep(0.0002)
        os.setsid()
        os.chdir(asked["folder"])
        output, socket_, page = given
        for number in (1, 2):
            os.dup2(output, number)
        for descriptor in (connection.detach(), *pipe, output):
            os.close(descriptor)
        sys.argv = ["ddpbench.worker", *asked["argv"][-5:]]
        sys.modules["__main__"].__spec__ = importlib.util.find_spec("ddpbench.worker.__main__")
        parent, folder = asked["argv"][-2:]
        worker_server.main(socket_, page, int(parent), Path(folder))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
