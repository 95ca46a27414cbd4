"""The fork server: imports torch once, then forks ranks that start in milliseconds. Each round has one server.

The first round's server also runs the proofs before that round. The controlling side and the server exchange messages
over an inherited socket, as one JSON object per line:

    from the controlling side   {"do": "import", "case": {...}}, to import what the case's ranks need
                                {"do": "launch", "directory": ..., "ranks": [{"env": {...}}, ...],
                                 "request": {...}, or null to read it from the directory,
                                 "lane": number of the launch's page, since several launches may run at once}
                                {"do": "probe", "path": ..., "case": {...} or null, "profile": {...} or null,
                                 "workload": a name or null, "order": whether to find the order of gradients,
                                 "largest": a case of the same workload whose ranks' data are checked, or null}
    from the server             {"event": "born", "pid": ...}
                                {"event": "ready", "import_s": ...}
                                {"event": "imported", "new": whether a module was not imported yet}
                                {"event": "started", "pids": [...]}
                                {"event": "exited", "rank": ..., "pid": ..., "code": ...,
                                 "cpu_s": CPU time of the rank and of its orphaned children that have ended since
                                 the last reported exit}
                                {"event": "refused", "reason": ..., "imported": whether imports for this case are the
                                 reason; then a server whose ranks make these imports can serve the case}

The server ends when the socket is closed. A guard process is its parent, see `ddpbench.guard`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import mmap
import os
import pkgutil
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import ddpbench.strategies
import ddpbench.workloads
from ddpbench.exit_messages import flush
from ddpbench.guard import Traces, die_with_parent, end_descendants, guarded
from ddpbench.machine.ports import free_port
from ddpbench.records import LaunchDir, LaunchRequest
from ddpbench.records.files import open_to_append, write_anew
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
from ddpbench.records.writer import leave_forked
from ddpbench.spec import Case
from ddpbench.worker.starting import RANKS_NEED
from ddpbench.worker.variables import complete_alone

_ASKS_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"

_HEARD_BYTES = 1 << 12
"""Bytes read at once. With a larger buffer, each message would touch a new page of the heap."""


def _own_modules() -> Iterator[str]:
    """Yield the modules of strategies and workloads, which the server imports once for all ranks."""
    for package in (ddpbench.strategies, ddpbench.workloads):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield module.name


def preload() -> float:
    """Import the modules that ranks of all cases need, and return the time it took (seconds)."""
    start = time.perf_counter()
    gc.disable()  # collections during imports take a seventh of the time, and free nothing
    with _asking_no_gpu():
        for module in RANKS_NEED:
            importlib.import_module(module)
        for module in _own_modules():
            # A strategy that needs a newer torch reports that itself, in its check.
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    gc.enable()
    gc.freeze()  # a collection in a rank would walk all of torch, and copy its pages
    return time.perf_counter() - start


def _import_for(case: Case) -> bool:
    """Import a case's modules and return whether any was new; the ranks report failures better."""
    new = False
    modules = list(ddpbench.strategies.early_imports(case))
    if not ddpbench.workloads.is_import_path(case.workload):
        modules += ddpbench.workloads.load_workload(case.workload).imports
    # A library that is too old for another one can raise any exception.
    with contextlib.suppress(Exception), _asking_no_gpu():
        for module in modules:
            if module not in sys.modules:
                new = True
                importlib.import_module(module)
    return new


@contextlib.contextmanager
def _asking_no_gpu() -> Iterator[None]:
    """Make imports that look for GPUs ask the driver, because a fork cannot use CUDA after CUDA was asked."""
    given = os.environ.get(_ASKS_DRIVER)
    os.environ[_ASKS_DRIVER] = "1"
    try:
        yield
    finally:
        os.environ.pop(_ASKS_DRIVER, None)
        if given is not None:
            os.environ[_ASKS_DRIVER] = given


class _UnforkableError(RuntimeError):
    """A fork of this process would hang: the reason, and whether imports for a case caused it."""


def _assert_forkable(*, imported: bool = False) -> None:
    """Check that forked ranks would not hang.

    Raises:
        _UnforkableError: this process has several threads or a CUDA context.
    """
    import torch

    made = f"something imported {'for a case' if imported else 'at start'} made"
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    if threads != 1:
        raise _UnforkableError(f"the fork server has {threads} threads; {made} one", imported)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise _UnforkableError(f"the fork server has a CUDA context; {made} it", imported)


class _Forked(NamedTuple):
    lane: int
    rank: int


class ForkServer:
    """Server that forks ranks on request and reports when they exit. It must stay single-threaded."""

    def __init__(self, connection: socket.socket, page: mmap.mmap, traces: Traces) -> None:
        self._connection = connection
        self._page = page
        self._traces = traces
        self._ranks: dict[int, _Forked] = {}
        """Running ranks by process id."""
        self._received = b""
        self._told_s = 0.0

    def serve(self) -> None:
        """Serve requests until the controlling side closes the connection."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, _note_signal)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._send(event="born", pid=os.getpid())
        self._send(event="ready", import_s=preload())
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._connection:
                        if not self._receive():
                            return
                    else:
                        os.read(wake_read, 4096)
                        self._reap()

    def _send(self, **message: Any) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self) -> bool:
        data = self._connection.recv(_HEARD_BYTES)
        if not data:
            return False
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            asked = json.loads(line)
            try:
                if asked["do"] == "launch":
                    given = asked["request"]
                    self._launch(
                        LaunchDir(Path(asked["directory"]).absolute()),  # a user's code may change directory
                        asked["ranks"],
                        None if given is None else LaunchRequest.from_json(given),
                        asked["lane"],
                    )
                elif asked["do"] == "import":
                    _assert_forkable()
                    new = _import_for(Case.from_json(asked["case"]))
                    _assert_forkable(imported=True)
                    self._send(event="imported", new=new)
                else:
                    self._probe(Path(asked["path"]).absolute(), asked)
            except _UnforkableError as error:
                reason, imported = error.args
                self._send(event="refused", reason=reason, imported=imported)
        return True

    def _launch(
        self,
        directory: LaunchDir,
        ranks: list[dict[str, Any]],
        request: LaunchRequest | None,
        lane: int,
    ) -> None:
        _assert_forkable()
        self._begin(lane)
        pids: list[int] = []
        meeting = {} if len(ranks) < 2 else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for number, rank in enumerate(ranks):
            pid = os.fork()
            if pid == 0:
                self._become_rank(directory, meeting | rank["env"], _Forked(lane, number), request)
            self._ranks[pid] = _Forked(lane, number)
            pids.append(pid)
        self._send(event="started", pids=pids)

    def _become_child(self, log: Path) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)  # a new process group, so that the rank and its loader workers are ended together
        self._connection.close()
        with open_to_append(log) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def _become_rank(
        self, directory: LaunchDir, env: dict[str, str], own: _Forked, request: LaunchRequest | None
    ) -> None:
        server = os.getppid()
        code = 1
        try:
            os.environ.update(env)
            os.environ["DDPBENCH_ENTERED_NS"] = str(time.perf_counter_ns())
            for name in [name for name, value in env.items() if not value]:
                del os.environ[name]  # an empty text stands for a variable that is not set
            _enter_network(os.environ)  # first: entering a user namespace clears what `die_with_parent` sets
            die_with_parent(server)
            from ddpbench.worker.place import JobPlace
            from ddpbench.worker.rank.rank import Rank

            place = JobPlace.from_environment()
            self._become_child(directory.log(place.rank, place.attempt))
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            page = memoryview(self._page)[own.lane * PAGE_BYTES : (own.lane + 1) * PAGE_BYTES]
            code = Rank(directory, place, Heartbeat(page, own.rank), request).run()
        except BaseException:
            traceback.print_exc()
        finally:
            flush()
            os._exit(code)

    def _probe(self, path: Path, asked: Mapping[str, Any]) -> None:
        """Fork a process that writes the requested facts (on machine, workload or profile) to `path` as JSON."""
        _assert_forkable()
        self._begin(0)
        pid = os.fork()
        if pid == 0:
            server = os.getppid()
            own = os.getpid()
            code = 1
            try:
                die_with_parent(server)
                self._become_child(path.with_suffix(".log"))
                found = json.dumps(_found(asked))
                if os.getpid() != own:
                    leave_forked()
                write_anew(path, found)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                flush()
                os._exit(code)
        self._ranks[pid] = _Forked(0, -1)
        self._send(event="started", pids=[pid])

    def _begin(self, lane: int) -> None:
        """Prepare for a launch on page `lane`, and forget earlier ranks there that did not end when killed."""
        self._ranks = {pid: forked for pid, forked in self._ranks.items() if forked.lane != lane}
        if not self._ranks:
            self._traces.keep()
            self._told_s = _ended_cpu_s()

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if pid in self._ranks:  # its process group is killed while its id cannot be reused
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            forked = self._ranks.pop(pid, None)
            if forked is None:
                continue  # an orphan of a rank
            if not self._ranks:
                self._traces.clear({pid, *end_descendants()})
            code = os.waitstatus_to_exitcode(status)
            # Loader workers that outlive their rank become this process's children, so their CPU time is counted
            # here.
            until_now_s = _ended_cpu_s()
            cpu_s, self._told_s = until_now_s - self._told_s, until_now_s
            self._send(event="exited", rank=forked.rank, pid=pid, code=code, cpu_s=cpu_s)


def _ended_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _found(asked: Mapping[str, Any]) -> dict[str, Any]:
    case, profile = asked["case"], asked.get("profile")
    complete_alone(os.environ)
    if asked.get("workload") is not None:
        return {"local_batch": ddpbench.workloads.load_workload(asked["workload"]).default_batch}
    if case is None:
        from ddpbench.worker.probe import describe

        return describe()
    if profile is not None:
        from ddpbench.worker.rank.profiling import profile_workload

        return profile_workload(Case.from_json(case), **profile)
    if asked.get("order"):
        from ddpbench.worker.verify.arrival import gradient_order

        return gradient_order(Case.from_json(case))
    from ddpbench.worker.verify.inspection import inspect_workload

    largest = asked.get("largest")
    return inspect_workload(Case.from_json(case), None if largest is None else Case.from_json(largest))


def _enter_network(env: Mapping[str, str]) -> None:
    if net_ns := env.get("DDPBENCH_NET_NS"):
        from ddpbench.fabric.entering import enter

        try:
            enter(net_ns, env.get("DDPBENCH_USER_NS", ""))
        except OSError as error:
            raise RuntimeError(
                f"the emulated network cannot be entered (does it still exist?): {error}"
            ) from None


def _note_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; with this handler set, Python writes to the wake-up pipe."""


def main(connection_fd: int, page_fd: int, parent: int, folder: Path) -> None:
    """Run a fork server and its guard on inherited file descriptors. Temporary files go to a new folder in `folder`."""
    connection = socket.socket(fileno=connection_fd)

    def serve(traces: Traces) -> int:
        traces.use()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the controlling side is gone
            ForkServer(connection, mmap.mmap(page_fd, 0), traces).serve()
        return 0

    guarded(connection, parent, folder, serve)
