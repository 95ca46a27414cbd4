"""Surroundings that fail a sweep: disk, files, memory, clock, directory, another sweep. Each is followed by a
resume.

They need root for mounts and limits. They change only what they have made, a mount in the run's folder or a
group of processes, which go when they end.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.campaign import oracle
from tests.campaign.setups import SETUPS, Command, Run

END_S = 90.0
PHASES = (
    "plan.json",
    "cases/*/proof/launch.json",
    "cases/*/launch-00/launch.json",
    "cases/*/launch-01/outcome.json",
)
"""Files whose appearance is the moment of a fault."""
CGROUP = Path("/sys/fs/cgroup/memory")
CLOCKS = {"back": -3600.0, "forward": 86_400.0, "to-1970": -1.7e9, "to-2100": 2.3e9, "every-second-back": 0.0}

_CLOCK = """
import time
_real, _mono, _began = time.time, time.monotonic, time.monotonic()
_jump = {jump!r}
def _time():
    past = _mono() - _began
    return _real() + ((_jump or -2 * past) if past > {after} else 0.0)
time.time = _time
time.time_ns = lambda: int(_time() * 1e9)
"""


def _await(run: Run, command: Command, pattern: str) -> bool:
    deadline = time.monotonic() + END_S
    while command.process.poll() is None and time.monotonic() < deadline:
        if any(run.directory.glob(pattern)):
            return True
        time.sleep(0.01)
    return False


def _ended(command: Command, codes: Sequence[int], *words: str) -> Iterator[str]:
    yield from _judged(command.ended(END_S), codes, *words)


def _judged(ended: oracle.Ended, codes: Sequence[int], *words: str) -> Iterator[str]:
    wrong = oracle.of_command(ended, codes=codes)
    if ended.code in (1, 2) and words and not any(word in ended.stderr.lower() for word in words):
        wrong.append(f"none of {', '.join(words)} is named")
    yield from (f"{each}: {ended.stderr[-300:]}" for each in wrong)


@contextlib.contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _remount(folder: Path, options: str) -> bool:
    """Change a mount; return whether it was possible, as files being written keep a disk writable."""
    command = ["mount", "-o", f"remount,{options}", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _disk_full(kib: int, run: Run) -> Iterator[str]:
    with _mounted(run.directory, f"size={kib}k"):
        yield from _ended(run.command("full"), (0, 1, 2), "disk", "space")
        _remount(run.directory, "size=200m")
        yield from _goes_on(run)


def _disk_fills(pattern: str, run: Run) -> Iterator[str]:
    with _mounted(run.directory, "size=200m"):
        command = run.command("full")
        came = _await(run, command, pattern)
        with contextlib.suppress(OSError), (run.directory / "filler").open("wb", 0) as file:
            while came:
                file.write(bytes(1 << 16))
        yield from _ended(command, (0, 1, 2), "disk", "space")
        (run.directory / "filler").unlink()
        yield from _goes_on(run)


def _read_only(pattern: str, run: Run) -> Iterator[str]:
    with _mounted(run.directory, "size=200m"):
        command = run.command("read-only")
        changed = False
        if _await(run, command, pattern):
            deadline = time.monotonic() + 10
            while not (changed := _remount(run.directory, "ro")) and time.monotonic() < deadline:
                time.sleep(0.01)
        yield from _ended(command, (0, 1, 2) if changed else (0,), "read-only")
        _remount(run.directory, "rw")
        yield from _goes_on(run)


def _on_tmpfs(run: Run) -> Iterator[str]:
    with _mounted(run.directory, "size=200m"):
        yield from _goes_on(run)


def _deleted(pattern: str, run: Run) -> Iterator[str]:
    command = run.command("deleted")
    if _await(run, command, pattern):
        shutil.rmtree(run.directory, ignore_errors=True)
    yield from _ended(
        command, (0, 1, 2), "deleted", "gone", "no longer", "no such file", "is missing", "removed"
    )
    shutil.rmtree(run.directory, ignore_errors=True)
    yield from _goes_on(run)


def _moved(pattern: str, run: Run) -> Iterator[str]:
    command = run.command("moved")
    aside = run.directory.with_name("aside")
    if _await(run, command, pattern):
        run.directory.rename(aside)
    yield from _ended(
        command, (0, 1, 2), "deleted", "gone", "no longer", "no such file", "is missing", "moved"
    )
    if aside.exists():
        shutil.rmtree(run.directory, ignore_errors=True)
        aside.rename(run.directory)
    yield from _goes_on(run)


def _limited(which: int, value: int, run: Run) -> Iterator[str]:
    run.before = partial(resource.setrlimit, which, (value, value))
    wrong = _ended(run.command("limited"), (0, 1, 2))
    # If no file may have a byte, neither may the file of the command's output.
    yield from (one for one in wrong if (which, value) != (resource.RLIMIT_FSIZE, 0) or "no word" not in one)
    run.before = None
    yield from _goes_on(run)


def _memory(mib: int, run: Run) -> Iterator[str]:
    group = (
        CGROUP / f"ddpbench-campaign-{secrets.token_hex(4)}"
    )  # in its own namespace every job is process 1
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(mib << 20))
        run.before = partial(_join, group)
        ended = run.command("limited").ended(END_S)
        wrong = oracle.of_command(ended, codes=(0, 1, 2, -signal.SIGKILL))
        yield from (f"{each}: {ended.stderr[-300:]}" for each in wrong)
        run.before = None
        yield from oracle.of_what_is_left(oracle.Before.now([]), [], run.tag)
        yield from _goes_on(run)
    finally:
        (CGROUP / "cgroup.procs").exists()
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _clock(jump: float, after: float, run: Run) -> Iterator[str]:
    folder = run.here / "clock"
    folder.mkdir()
    (folder / "usercustomize.py").write_text(_CLOCK.format(jump=jump, after=after), encoding="utf-8")
    run.extra = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}
    yield from _ended(run.command("clock"), (0, 1))
    run.extra = {}
    yield from _goes_on(run)


def _second(elsewhere: bool, pattern: str, run: Run) -> Iterator[str]:
    """Run another sweep of the same directory, or of another on the same cores, at the same time."""
    run.extra = {"DDPBENCH_SHARED_MACHINE": ""} if elsewhere else {}
    first = run.command("first")
    tag = run.tag
    if _await(run, first, pattern):
        other = Run(run.setup, run.here / "other" if elsewhere else run.here, run.extra)
        if elsewhere:
            (run.here / "other").mkdir()
            (run.here / "other/tmp").mkdir()
            shutil.copy(run.here / "given.toml", other.here)
        second = other.command("second").ended(END_S)
        first_runs = first.process.poll() is None
        codes = (
            (2,) if first_runs else (0, 2)
        )  # on a busy machine the first may have ended before the second looked
        yield from _judged(second, codes, "is using", "in use", "another sweep")
        if elsewhere and other.directory.exists():
            yield "a refused sweep made its directory"
    yield from _ended(first, (0,))
    yield from oracle.of_what_is_left(oracle.Before.now([]), [], tag)
    yield from _goes_on(run)


def _environment(name: str, value: str, run: Run) -> Iterator[str]:
    run.extra = {name: value.replace("{here}", str(run.here))}
    yield from _ended(run.command("environment"), (0, 1, 2))
    run.extra = {}
    yield from _goes_on(run)


def _nobody_listens(how: str, run: Run) -> Iterator[str]:
    """Close standard output or error, or the reading end of its pipe."""
    line = " ".join(run._lines("x")[0])
    shell = {
        "head": f"{line} 2>&1 | head -1",
        "out-closed": f"{line} >&-",
        "error-closed": f"{line} 2>&-",
        "both-closed": f"{line} >&- 2>&-",
        "full": f"{line} > /dev/full",
        "in-closed": f"{line} <&-",
    }[how]
    tag = f"fault-{os.getpid()}-{time.monotonic_ns()}"
    environment = {**os.environ, oracle.TAG: tag, "TMPDIR": str(run.here / "tmp"), "COLUMNS": "100"}
    began = time.monotonic()
    ended = subprocess.run(
        ["timeout", "-s", "KILL", str(END_S), "sh", "-c", shell],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    code = None if ended.returncode in (137, -9) else ended.returncode
    seconds = time.monotonic() - began
    yield from oracle.of_command(
        oracle.Ended([shell], code, ended.stdout, ended.stderr, seconds), codes=(0, 1, 2, 120)
    )
    yield from oracle.of_what_is_left(oracle.Before.now([]), [], tag)
    yield from _goes_on(run)


def _goes_on(run: Run) -> Iterator[str]:
    """Finish the run with an undisturbed command; yield what was lost."""
    before = oracle.finished(run.directory)
    ended = run.command("last").ended(END_S)
    for wrong in oracle.of_command(ended, codes=(0,)):
        yield f"the undisturbed command after it: {wrong}: {ended.stderr[-300:]}"
    yield from oracle.of_launches(before, oracle.finished(run.directory))
    if ended.code == 0:
        yield from oracle.of_table(run.setup.undisturbed(run.here.parent), run.directory)


SURROUNDINGS: dict[str, Callable[[Run], Iterator[str]]] = {
    **{
        f"disk-of-{kib}-kib": partial(_disk_full, kib)
        for kib in (4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768)
    },
    **{f"disk-fills-at-{place}": partial(_disk_fills, file) for place, file in enumerate(PHASES)},
    **{f"read-only-at-{place}": partial(_read_only, file) for place, file in enumerate(PHASES)},
    "on-tmpfs": _on_tmpfs,
    **{f"deleted-at-{place}": partial(_deleted, file) for place, file in enumerate(PHASES)},
    **{f"moved-at-{place}": partial(_moved, file) for place, file in enumerate(PHASES)},
    **{
        f"open-files-{count}": partial(_limited, resource.RLIMIT_NOFILE, count)
        for count in (8, 12, 16, 20, 24, 28, 32, 48, 64)
    },
    **{
        f"file-size-{kib}-kib": partial(_limited, resource.RLIMIT_FSIZE, kib << 10)
        for kib in (0, 1, 4, 16, 64, 256)
    },
    **{f"memory-{mib}-mib": partial(_memory, mib) for mib in (60, 120, 180, 240, 300, 400, 500, 600)},
    **{
        f"clock-{name}-{after}-s": partial(_clock, jump, after)
        for name, jump in CLOCKS.items()
        for after in (0, 4)
    },
    **{f"same-directory-at-{place}": partial(_second, False, file) for place, file in enumerate(PHASES)},
    **{f"same-cores-at-{place}": partial(_second, True, file) for place, file in enumerate(PHASES[:2])},
    "tmpdir-missing": partial(_environment, "TMPDIR", "/nonexistent"),
    "tmpdir-a-file": partial(_environment, "TMPDIR", "{here}/given.toml"),
    "tmpdir-long": partial(_environment, "TMPDIR", "{here}/tmp" + "/." * 100),
    "home-missing": partial(_environment, "HOME", "/nonexistent"),
    "no-locale": partial(_environment, "LC_ALL", "C"),
    "no-utf-8": partial(_environment, "PYTHONIOENCODING", "ascii"),
    "no-terminal": partial(_environment, "TERM", "nonsense"),
    "no-columns": partial(_environment, "COLUMNS", "0"),
    "no-path": partial(_environment, "PATH", ""),
    "wrong-rank": partial(_environment, "RANK", "seven"),
    "wrong-port": partial(_environment, "MASTER_PORT", "0x1d"),
    "wrong-threads": partial(_environment, "OMP_NUM_THREADS", "-1"),
    **{
        f"nobody-listens-{how}": partial(_nobody_listens, how)
        for how in ("head", "out-closed", "error-closed", "both-closed", "full", "in-closed")
    },
}


def surrounded(name: str, here: Path, shared: Sequence[Path]) -> list[str]:
    """Return what went wrong with one of them."""
    run = SETUPS["local"].run(here)
    before = oracle.Before.now(shared)
    found = list(SURROUNDINGS[name](run))
    return found + oracle.of_what_is_left(before, shared, run.tag)
