"""The guard of a rank that a launcher starts alone, and the end of a stopped slot: without torch, in milliseconds."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpbench import guard
from ddpbench.guard import is_stopped, signal_name
from tests.processes import AS_IN_A_TERMINAL, alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what the guard asks for is Linux's")

RANK = """
import json, os, subprocess, sys, tempfile, time
from pathlib import Path
from ddpbench.guard import supervised

def rank():
    run_away = subprocess.run(
        ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], capture_output=True, start_new_session=True
    )
    forked = os.fork() or time.sleep(600)
    with tempfile.NamedTemporaryFile(delete=False) as file:
        pass
    found = {"rank": os.getpid(), "watcher": os.getppid(), "left": [forked, int(run_away.stdout)], "file": file.name}
    Path(sys.argv[1], "found.new").write_text(json.dumps(found))
    Path(sys.argv[1], "found.new").rename(Path(sys.argv[1], "found"))
    if sys.argv[2] == "waits":
        time.sleep(600)
    if sys.argv[2] == "raises":
        raise ValueError("of the rank")
    return int(sys.argv[2])

supervised(Path(sys.argv[1]), rank)
"""


def begun(folder: Path, does: str, *, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    return subprocess.Popen(
        [*AS_IN_A_TERMINAL, *under, sys.executable, "-c", RANK, str(folder), does],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def noted(folder: Path) -> dict[str, object]:
    deadline = time.monotonic() + 30
    while not (folder / "found").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found: dict[str, object] = json.loads((folder / "found").read_text(encoding="utf-8"))
    return found


def check_nothing_is_left(folder: Path, found: dict[str, object]) -> None:
    left = found["left"]
    assert isinstance(left, list)
    assert not alive([found["rank"], found["watcher"], *left])  # type: ignore[list-item]
    assert str(found["file"]).startswith(f"{folder}/.tmp-")
    assert [path.name for path in folder.iterdir()] == ["found"]


@pytest.mark.parametrize(("does", "code"), [("0", 0), ("3", 3), ("raises", 1)])
def test_a_rank_that_a_launcher_started_leaves_nothing(tmp_path: Path, does: str, code: int) -> None:
    """Even what left its session and its parent ends; its exit code and output are its own."""
    with begun(tmp_path, does) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert ("ValueError: of the rank" in errors) == (does == "raises")
    check_nothing_is_left(tmp_path, noted(tmp_path))


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("guard", signal.SIGTERM),
        ("guard", signal.SIGINT),
        ("guard", signal.SIGKILL),
        ("watcher", signal.SIGKILL),
        ("rank", signal.SIGKILL),
    ],
)
def test_whichever_of_a_ranks_processes_is_ended_nothing_is_left(
    tmp_path: Path, whom: str, number: signal.Signals
) -> None:
    with begun(tmp_path, "waits") as process:
        found = noted(tmp_path)
        os.kill({"guard": process.pid, **found}[whom], number)  # type: ignore[arg-type]
        process.communicate(timeout=30)
    assert process.returncode == -number
    deadline = time.monotonic() + 20
    while (
        list(tmp_path.glob(".tmp-*")) and time.monotonic() < deadline
    ):  # without its guard the watcher does it
        time.sleep(0.01)
    check_nothing_is_left(tmp_path, found)


@pytest.fixture
def tests_under_nohup() -> Iterator[None]:
    """Ignore SIGHUP, as in `nohup make test`: processes that tests start inherit it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("tests_under_nohup")
@pytest.mark.parametrize("launcher", ["", "nohup "])
def test_a_rank_ends_with_its_launcher_unless_that_said_nohup(tmp_path: Path, launcher: str) -> None:
    line = f'{launcher}"$@" >/dev/null 2>&1 & sleep 600'
    with begun(tmp_path, "waits", under=("sh", "-c", line, "sh")) as process:
        found = noted(tmp_path)
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        )
        process.kill()
    guard, sleeper = int(children[0]), int(children[1])
    os.kill(sleeper, signal.SIGKILL)
    if launcher:
        assert alive([guard], 1.5) == [guard]
        os.kill(guard, signal.SIGTERM)
    assert not alive([guard])
    check_nothing_is_left(tmp_path, found)


WORK = """
import os, signal, socket, sys
from pathlib import Path
from ddpbench import guard

def work(traces):
    if sys.argv[2] == "raises":
        raise ValueError(9000 * "x" + "of the work")
    if sys.argv[2] == "leaves":
        sys.exit("goodbye")
    if sys.argv[2] == "fails":
        sys.exit(1)
    if sys.argv[2] == "terminated while it says why":
        raise ValueError("of the work")
    os.kill(os.getpid(), signal.SIGTERM)

explained = guard.explained

def and_terminated(error):
    guard.explained = explained
    os.kill(os.getpid(), signal.SIGTERM)
    return explained(error)

if sys.argv[2] == "terminated while it says why":
    guard.explained = and_terminated
orphan = sys.argv[2] == "orphan"
connection, parent = (socket.socketpair()[0], 1) if orphan else (None, os.getppid())
guard.guarded(connection, parent, Path(sys.argv[1]), work)
"""


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        ("raises", 1, "xxof the work\n"),
        ("leaves", 1, "SystemExit: goodbye"),
        ("fails", 1, "SystemExit: 1"),
        ("terminated while it says why", 128 + signal.SIGTERM, ""),
        ("terminated", 128 + signal.SIGTERM, ""),
        ("orphan", 1, "process 1, which started this guard process, has ended"),
    ],
)
def test_why_a_process_behind_a_guard_ended_is_said_or_its_exit_code_tells(
    tmp_path: Path, does: str, code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORK, tmp_path, does], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == code
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)


@pytest.mark.parametrize("room", [0, select.PIPE_BUF])
@pytest.mark.parametrize("does", ["raises", "orphan"])
def test_last_words_wait_for_no_reader(tmp_path: Path, does: str, room: int) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(write, bytes(4096)):
            pass
    os.set_blocking(write, True)
    os.read(read, room)
    done = subprocess.run([sys.executable, "-c", WORK, tmp_path, does], stderr=write, timeout=30, check=False)
    os.close(read)
    os.close(write)
    assert done.returncode == 1


STOPPED = """
import os, sys, time
from ddpbench import guard
guard.STOPPED_LOOKS, guard._LOOK_S = 2, 0.02
guard.end_if_stopped("it was stopped")
print("ready", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def watched() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a process that another watches; return it, and the other's id."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (watcher,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()
        yield process, int(watcher)


def test_a_process_that_is_stopped_for_good_is_ended_and_says_so() -> None:
    with watched() as (process, watcher):
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert errors == "it was stopped\n"
    assert not alive([watcher])


def test_who_looks_whether_a_process_is_stopped_goes_with_it() -> None:
    with watched() as (process, watcher):
        process.terminate()
        assert process.communicate(timeout=30)[1] == ""
    assert not alive([watcher])


def test_a_signal_has_its_name_or_its_number() -> None:
    assert [signal_name(number) for number in (9, 15, 40)] == ["SIGKILL", "SIGTERM", "signal 40"]


def test_of_shared_memory_files_of_this_user_are_removed_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone can give a folder there a name that a launch uses, with a folder of this user in it."""
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(guard, "_SHARED", shared)
    traces = guard.Traces(tmp_path)
    starts = ("torch_7_", f"{traces._prefix}_", f"sem.{traces._prefix}-")
    for start in starts:
        thesis = shared / f"{start}x" / "results" / "thesis.txt"
        thesis.parent.mkdir(parents=True)
        thesis.touch()
        for name in ("own", "others", "y"):
            (shared / f"{start}{name}").touch()
        if os.geteuid() == 0:
            os.chown(shared / f"{start}x", 65534, 65534)
            os.chown(shared / f"{start}others", 65534, 65534)
    (shared / "torch_8_own").touch()
    traces.clear([7])
    traces.remove()
    kept = {
        f"{start}{name}" for start in starts for name in ("x", *(["others"] if os.geteuid() == 0 else []))
    }
    assert {path.name for path in shared.iterdir()} == {*kept, "torch_8_own"}
    assert all((shared / f"{start}x/results/thesis.txt").exists() for start in starts)


def test_shared_memory_from_before_a_launch_is_left_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers may share memory and have processes with equal ids."""
    monkeypatch.setattr(guard, "_SHARED", tmp_path)
    traces = guard.Traces(tmp_path)
    for name in ("torch_7_others", "torch_7_own"):
        (tmp_path / name).touch()
    before = time.time() - 60
    os.utime(tmp_path / "torch_7_others", (before, before))
    traces.keep()
    traces.clear([7])
    traces.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["torch_7_others"]


def test_shared_memory_that_may_not_be_listed_ends_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_SHARED", tmp_path / "missing")
    traces = guard.Traces(tmp_path)
    left = Path(traces.path, "left")
    left.touch()
    traces.clear([os.getpid()])
    assert not left.exists()
    traces.remove()


def test_the_temporary_folder_of_a_run_that_has_been_moved_is_removed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    traces = guard.Traces(tmp_path / "run")
    (tmp_path / "run/.torchinductor").mkdir()
    (tmp_path / "run").rename(tmp_path / "moved")
    assert [path.name[:5] for path in (tmp_path / "moved").glob(".tmp-*")] == [".tmp-"]
    traces.remove()
    assert not list((tmp_path / "moved").iterdir())
