"""The guard of a launch: no process, temporary file or name in shared memory of it survives it.

    controlling side -> guard -> fork server -> ranks -> their processes

The guard sleeps until the controlling side or the fork server is gone, and then ends everything beneath it. It and
the fork server adopt orphans (PR_SET_CHILD_SUBREAPER): a process that left its group, its session or its parent is
still found, as a child. The fork server uses this to end what is left once a launch's ranks are gone, and does the
guard's work if that is killed. Ranks and their loader workers die with their parent (PR_SET_PDEATHSIG), however it
ends. A rank that another launcher starts alone has such a guard, too; a slot's ranks have their fork server's.
The standard library only: the guard imports no torch. A call that the kernel lacks is left out, and the rest holds.
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
from ddpbench.removal import TemporaryFolder, remove_files, remove_in

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

ENDING_S = 5.0
"""Time to wait for killed processes, seconds: one that sleeps in the kernel, for a disk say, ends later."""
STOPPED_LOOKS = 30
"""Looks in a row, a second apart, that find a slot stopped before it is ended: the others rely on it no more."""
_LOOK_S = 1.0
_SHARED = Path("/dev/shm")


def _prctl(option: int, value: int) -> None:
    """Make a request to the kernel, which may be another than Linux or older than the option."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL, *, message: str = "") -> None:
    """Ask the kernel to signal this process when its parent ends; leave at once if it has ended already.

    The parent is the thread that forked. A change of credentials may undo the request. Prints `message` before leaving.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        tell(message)
        os._exit(1)


def signal_name(number: int) -> str:
    """Return a signal's name, such as `SIGKILL`; real-time signals only have numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def adopt_orphans() -> None:
    """Make this process the parent of all beneath it whose own parents end, instead of the system's first process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int) -> list[int]:
    """Return the ids of all processes beneath this one, parents first; empty if /proc is not Linux's."""
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
    """Start a small process that kills this one, with a message, once it is stopped for good and cannot end itself."""
    watched = os.getpid()
    if os.fork():
        return
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it ends with the other, however that ends
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
    """Kill processes, some of which may have ended already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_descendants(within_s: float = ENDING_S) -> set[int]:
    """Kill all processes beneath this one and wait for them; return the ids of those that existed.

    One that forks meanwhile, or is orphaned, is found in the next round: this ends only when no child is left.
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
    """Note the ends of children; return whether there are more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


class Traces:
    """Things that a launch may leave in addition to processes: temporary files, and names in shared memory.

    Ranks have `path` as their temporary folder, in the run directory if that can hold a socket. If the user names one
    with TMPDIR, perhaps because data are staged there, ranks keep that and only the files of Python's own processes
    (the sockets of loader workers' servers) go here.
    """

    def __init__(self, folder: Path) -> None:
        """Take `folder`, in which to make the temporary one."""
        self._prefix = f"dp{secrets.token_hex(3)}"  # with more, shared memory's names would be too long
        self._folder: TemporaryFolder | None = None
        self._descriptor: int | None = None
        self.path = ""
        self._cache = folder / ".torchinductor"
        self._kept: set[str] = set()
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
        """Yield the folder's name, and a short one: a socket's path has at most 107 bytes."""
        assert self._folder is not None
        yield str(self._folder.path.absolute())
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self._folder.path, os.O_RDONLY | os.O_DIRECTORY)
            yield f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def use(self) -> None:
        """Make this process, and those it forks, leave their files where `clear` and `remove` find them."""
        own: Any = process.current_process()
        own._config["semprefix"] = f"/{self._prefix}"
        setattr(shared_memory, "_SHM_NAME_PREFIX", f"/{self._prefix}_")  # noqa: B010 - it is not declared
        os.environ.setdefault(
            "TORCHINDUCTOR_CACHE_DIR", str(self._cache.absolute())
        )  # torch makes it in any case
        if self.path:
            own._config["tempdir"] = self.path
            if "TMPDIR" not in os.environ:
                os.environ["TMPDIR"] = self.path
                tempfile.tempdir = None  # it is looked up only once

    def keep(self) -> None:
        """Keep what is in the temporary folder now: it belongs to no launch."""
        self._kept = set(self._files())

    def clear(self, ended: Iterable[int]) -> None:
        """Remove what a launch left. `ended` are processes of it that are gone."""
        if self.path:
            remove_in(Path(self.path), None, lambda name: name not in self._kept)
        remove_files(
            _SHARED, (f"sem.{self._prefix}-", f"{self._prefix}_", *(f"torch_{pid}_" for pid in ended))
        )

    def remove(self) -> None:
        """Remove the temporary folder itself, too."""
        if self._folder is not None:
            self._folder.remove(self._now_at(self._folder.path))
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        cache = self._now_at(self._cache)
        for folder in (*cache.glob("*"), cache):  # unless it was used
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _now_at(self, path: Path) -> Path:
        """Return a path in the given folder by that folder's present name: it may have been moved meanwhile."""
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
    """Return whether loader workers' servers can listen there: the path may be too long, or sockets impossible."""
    path = f"{folder}/listener-12345678"  # as long as multiprocessing's
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
    """Do `work` in a separate process and end with its exit code, or when the other end of `connection` is gone.

    Whichever comes first, all processes beneath this one are ended before this one ends, and their files removed.
    `parent` is the process that started this one, `folder` a place for temporary files. Without a connection this
    process ends when its parent does, unless it was started under nohup.
    """
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
        # A copy of its end of the connection may outlive it.
        die_with_parent(
            parent, signal.SIGTERM, message=f"process {parent}, which started this guard, is gone"
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
        except (
            BaseException
        ) as error:  # asked to end while it reported why, or before there was anything to report
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
    """Do `work`, which no fork server starts, in a separate process, and end as it does; nothing of it is left.

    `ended` gets that process's exit code, negative for a signal, unless this process is ended first.
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
    """End because the guard was killed, or this process is asked to: the exit code says so in a shell's form."""
    raise SystemExit(128 + signal.SIGTERM)


def _await(worker: int, connection: socket.socket, woken: int, asked: Iterable[int]) -> int:
    """Return the worker's wait status once it has ended; 0 or a signal's if it is to be ended."""
    poll = select.poll()
    poll.register(connection, 0)  # only its end
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
    """Return the worker's wait status once it has ended; that of a signal that is to end it.

    Looks at its `parent`: the kernel's own signal depends on the thread that forked, and a launcher may have many.
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
    """Return the wait status of a child that has ended; None while it runs. Notes other children's ends."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                return ended[1]
    return None


def _end_as(status: int) -> NoReturn:
    """End as a process with this wait status did."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _note_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: with a handler, Python writes to the wake-up pipe."""
