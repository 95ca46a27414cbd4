"""The guard of a launch, which ensures that no process, temporary file or shared memory of the launch is left over.

    controlling side -> guard -> fork server -> ranks -> their processes

The controlling side is the process that starts launches. The guard sleeps until the controlling side or the fork server
is gone, and then ends all processes beneath itself. The guard and the fork server adopt orphans
(PR_SET_CHILD_SUBREAPER), so that a process which left its group, session or parent is still found, as a child. The fork
server ends what is left once a launch's ranks are gone, and does the guard's work if the guard is killed. Ranks and
their loader workers die with their parent (PR_SET_PDEATHSIG), however the parent ends. A rank that a launcher such as
torchrun starts directly has its own guard.

This module imports only the standard library, so the guard needs no torch. System calls that the kernel does not have
are skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import secrets
import select
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import process, shared_memory
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ddpbench.exit_messages import explained, flush, tell
from ddpbench.inherited_signals import accept_signals
from ddpbench.removal import TemporaryFolder, remove_files, remove_in

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

ENDING_S = 5.0
"""Longest wait for killed processes, seconds; a process that sleeps in the kernel, say for a disk, may end later."""
STOPPED_LOOKS = 30
"""Checks in a row, a second apart, that must find a process stopped before `end_if_stopped` kills it."""
_LOOK_S = 1.0
_SHARED = Path("/dev/shm")
_COARSE_NS = 1_000_000_000
"""Largest age of a new file by the clock, nanoseconds; the kernel's clock for files ticks more coarsely."""


def _prctl(option: int, value: int) -> None:
    """Call `prctl`; do nothing if the kernel is not Linux or is too old for the option."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL, *, message: str = "") -> None:
    """Ask the kernel to signal this process when its parent ends.

    If the parent has ended already, print `message` and exit with code 1. The signal also comes when only the thread
    that forked ends. A change of user or group may drop the request.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        tell(message)
        os._exit(1)


def signal_name(number: int) -> str:
    """Return a signal's name, such as `SIGKILL`, or `signal 35` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def adopt_orphans() -> None:
    """Make this process, instead of the init process, the parent of descendants whose own parents end."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int) -> list[int]:
    """Return the ids of all processes beneath `root`, parents first; empty without Linux's /proc."""
    children: dict[int, list[int]] = {}
    for pid in _numbers("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            children.setdefault(int(stat.rpartition(b")")[2].split()[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _numbers(folder: str) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir(folder) if name.isdecimal())  # noqa: PTH208


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by SIGSTOP or a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] in b"Tt"


def end_if_stopped(message: str) -> None:
    """Start a small process that prints a message and kills this process if this process stays stopped."""
    watched = os.getpid()
    if os.fork():
        return
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # this process ends with the watched one
        die_with_parent(watched)
        looks = 0
        while os.getppid() == watched and looks < STOPPED_LOOKS:
            time.sleep(_LOOK_S)
            looks = looks + 1 if is_stopped(watched) else 0
        if os.getppid() == watched:
            tell(message)
            os.kill(watched, signal.SIGKILL)
    finally:
        os._exit(0)


def kill_all(pids: Iterable[int]) -> None:
    """Kill these processes, but ignore any process that has ended already or belongs to another user."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_descendants(within_s: float = ENDING_S) -> set[int]:
    """Kill all processes beneath this one and wait for them, `within_s` seconds at most; return the ids of all killed.

    This is repeated until no child is left, because processes may be forked or orphaned meanwhile.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + within_s
    pause_s = 0.001
    while _reap() and time.monotonic() < deadline:
        found = descendants(os.getpid())
        kill_all(found)
        ended.update(found)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return ended


def _reap() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable with the folder of compiled models, from which torch runs code.

By default, torch uses `/tmp/torchinductor_USER`, which another user of the host could make first.
"""


def compiler_cache(folder: Path) -> Path:
    """Return the folder of compiled models for a run in `folder`. torch makes it even if it does not use it."""
    return folder / ".torchinductor"


def remove_unused_cache(cache: Path) -> None:
    """Remove the folder of compiled models if it contains no files."""
    for folder in (*cache.glob("*"), cache):  # fails if the cache was used
        with contextlib.suppress(OSError):
            folder.rmdir()


class Traces:
    """Files and shared memory that a launch may leave behind.

    `path` is the launch's own temporary folder, inside the run directory if sockets can be made there. If the user has
    set TMPDIR, perhaps for staged data, `path` holds only the sockets of Python's multiprocessing servers.
    """

    def __init__(self, folder: Path) -> None:
        self._prefix = f"dp{secrets.token_hex(3)}"  # with more, shared memory's names would be too long
        self._folder: TemporaryFolder | None = None
        self._descriptor: int | None = None
        self.path = ""
        self._cache = compiler_cache(folder)
        self._kept: set[str] = set()
        self._since_ns = time.time_ns() - _COARSE_NS
        self._parent: int | None = None
        with contextlib.suppress(OSError):
            self._parent = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for parent in (folder, None):
            try:
                self._folder = TemporaryFolder(".tmp-" if parent else "ddpbench-", parent)
            except OSError:
                continue
            for path in self._names():
                if _holds_sockets(path):
                    self.path = path
                    return
            self.remove()

    def _names(self) -> Iterator[str]:
        """Yield the folder's path, then a short alias, because a socket's path has at most 107 bytes."""
        assert self._folder is not None
        yield str(self._folder.path.absolute())
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self._folder.path, os.O_RDONLY | os.O_DIRECTORY)
            yield f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def use(self) -> None:
        """Make this process, and all that it forks, put their files where `clear` and `remove` find them."""
        own: Any = process.current_process()
        own._config["semprefix"] = f"/{self._prefix}"
        setattr(shared_memory, "_SHM_NAME_PREFIX", f"/{self._prefix}_")  # noqa: B010 - it is not declared
        os.environ.setdefault(COMPILER_CACHE, str(self._cache.absolute()))
        if self.path:
            own._config["tempdir"] = self.path
            if "TMPDIR" not in os.environ:
                os.environ["TMPDIR"] = self.path
                tempfile.tempdir = None  # forget the folder that was looked up before

    def keep(self) -> None:
        """Make `clear` keep the files that exist now, because they belong to no launch."""
        self._kept = set(self._files())
        self._since_ns = time.time_ns() - _COARSE_NS

    def clear(self, ended: Iterable[int]) -> None:
        """Remove the files and shared memory that a launch left; `ended` has the ids of its ended processes."""
        if self.path:
            remove_in(Path(self.path), None, lambda name: name not in self._kept)
        remove_files(_SHARED, (f"sem.{self._prefix}-", f"{self._prefix}_"))
        # torch's names have a process's id, which processes of other containers with this shared memory may have too.
        remove_files(_SHARED, tuple(f"torch_{pid}_" for pid in ended), self._since_ns)

    def remove(self) -> None:
        """Remove the temporary folder, and also the folder of the compiler's cache if it contains no files."""
        if self._folder is not None:
            self._folder.remove(self._now_at(self._folder.path))
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        remove_unused_cache(self._now_at(self._cache))

    def _now_at(self, path: Path) -> Path:
        if self._parent is None or path.parent != self._cache.parent:
            return path
        try:
            return Path(os.readlink(f"/proc/self/fd/{self._parent}"), path.name)  # noqa: PTH115
        except OSError:
            return path

    def _files(self) -> list[str]:
        try:
            return os.listdir(self.path) if self.path else []  # noqa: PTH208
        except OSError:
            return []


def _holds_sockets(folder: str) -> bool:
    """Return whether sockets can be made here: a long path or the file system may prevent that."""
    path = f"{folder}/listener-12345678"  # as long as the names that multiprocessing gives
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(path)
        os.unlink(path)  # noqa: PTH108
    except OSError:
        return False
    return True


def guarded(
    connection: socket.socket | None, parent: int, folder: Path, work: Callable[[Traces], int]
) -> NoReturn:
    """Do `work` in a separate process, then end with its exit code, or when `connection` is closed.

    All descendants are ended first, and their files in `folder` are removed. Without a connection, this process ends
    with the process `parent`, unless it was started under nohup.
    """
    accept_signals()
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    asked = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    if connection is None:
        asked = [number for number in asked if signal.getsignal(number) is not signal.SIG_IGN]
    for number in (signal.SIGCHLD, *asked):
        signal.signal(number, _note_signal)
    if connection is not None:
        # The parent's death may not close the connection, because another process may have a copy of its end.
        die_with_parent(
            parent, signal.SIGTERM, message=f"process {parent}, which started this guard process, has ended"
        )
    adopt_orphans()
    traces = Traces(folder)
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *asked):
                signal.signal(number, signal.SIG_DFL)
            os.close(woken)
            os.close(wake)
            adopt_orphans()
            signal.signal(signal.SIGTERM, _leave)
            die_with_parent(guard, signal.SIGTERM, message="its guard is gone")
            try:
                code = work(traces)
            except BaseException as error:
                code = explained(error)
        except BaseException as error:  # SIGTERM came while an error was reported, or before the work began
            code = explained(error)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.getppid() != guard:
                _end_all(traces, os.getpid())
            flush()
            os._exit(code)
    if connection is None:
        status = _await_alone(worker, woken, asked, parent if signal.SIGHUP in asked else None)
    else:
        status = _await(worker, connection, woken, asked)
    _end_all(traces, worker)
    flush()
    _end_as(status)


def supervised(
    folder: Path, work: Callable[[], int], ended: Callable[[int], None] = lambda _: None
) -> NoReturn:
    """Do `work` in a separate process under a guard, without a fork server. End with its exit code or signal.

    `ended` is called with its exit code, negative for a signal, unless this process is ended first.
    """

    def watched(traces: Traces) -> int:
        traces.use()
        watcher = os.getpid()
        worker = os.fork()
        if worker == 0:
            code = 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                die_with_parent(watcher)
                code = work()
            except BaseException:
                traceback.print_exc()
            finally:
                flush()
                os._exit(code)
        _, status = os.waitpid(worker, 0)
        ended(os.waitstatus_to_exitcode(status))
        _end_as(status)

    guarded(None, os.getppid(), folder, watched)


def _end_all(traces: Traces, worker: int) -> None:
    traces.clear({worker, *end_descendants()})
    traces.remove()


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """Exit on SIGTERM with the exit code that shells use (143)."""
    raise SystemExit(128 + signal.SIGTERM)


def _await(worker: int, connection: socket.socket, woken: int, asked: Iterable[int]) -> int:
    """Return the worker's wait status; earlier, 0 if `connection` was closed, or a received signal's number."""
    poll = select.poll()
    poll.register(connection, 0)  # reports only that it was closed
    poll.register(woken, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == connection.fileno():
                return 0
            if came := set(os.read(woken, 4096)).intersection(asked):
                return min(came)
        if (status := _status_of(worker)) is not None:
            return status


def _await_alone(worker: int, woken: int, asked: Iterable[int], parent: int | None) -> int:
    """Return the worker's wait status, or the signal by which it must end (SIGTERM if `parent` ended).

    The parent is polled: the kernel's signal would come when the thread that forked ends.
    """
    while parent is None or os.getppid() == parent:
        if select.select([woken], [], [], _LOOK_S)[0] and (
            came := set(os.read(woken, 4096)).intersection(asked)
        ):
            return min(came)
        if (status := _status_of(worker)) is not None:
            return status
    return signal.SIGTERM


def _status_of(worker: int) -> int | None:
    """Return the worker's wait status, or None while it runs; reap all other ended children."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                return ended[1]
    return None


def _end_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _note_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; Python writes to the wake-up pipe only for signals that have a handler."""
