"""Try one input: its command runs in a process forked from this one, which has imported all that commands
need.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.campaign import oracle, rundirs
from tests.campaign.inputs import Input, input_of

ROOT = Path(__file__).parents[2]
MEMORY = 8 << 30
"""Bytes of address space for a command that starts no rank: a command that needs more is unbounded."""


def prepare() -> None:
    """Import what commands import when they run, and write the files that inputs are made from."""
    import ddpbench.analysis
    import ddpbench.launch
    import ddpbench.report.draw.painter
    from tests.lighter import sitecustomize

    assert ddpbench.analysis
    assert ddpbench.launch
    folder = str(Path(sitecustomize.__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), folder])
    rundirs.prepare()


def tried(name: str, here: Path, shared: Sequence[Path]) -> list[str]:
    """Return what an input's command got wrong. Nothing may be left in `shared`, places outside its own
    folder.
    """
    given = input_of(name)
    here.mkdir()
    (here / "tmp").mkdir()
    tag = f"input-{os.getpid()}-{time.monotonic_ns()}"
    try:
        given.prepare(here)
        before = oracle.Before.now([*shared, here])
        state = given.state(here)
        ended = run(given, here, tag)
        lost = given.lost(state, here, ended.code)
        judged = replace(ended, out="") if given.prints_first else ended
        wrong = [*lost, *oracle.of_command(judged, codes=given.codes, named=given.named)]
        wrong += [f"{word!r} is not said" for word in given.said if word not in ended.stderr]
        wrong += oracle.of_what_is_left(before, [*shared, here / "tmp"], tag)
        made = oracle.listing([here]) - before.files
        allowed = () if ended.code == 2 else given.made
        stray = sorted(
            str(path.relative_to(here)) for path in made if path.relative_to(here).parts[0] not in allowed
        )
        wrong += [f"left: {', '.join(stray[:4])}"] if stray else []
        return wrong + [f"said: {ended.stderr[-400:]}"] * bool(wrong)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def run(given: Input, here: Path, tag: str) -> oracle.Ended:
    """Run an input's command to its end, or its deadline."""
    argv = [word.replace("{here}", str(here)) for word in given.argv]
    out, errors = here.with_suffix(".out"), here.with_suffix(".stderr")
    environment = {oracle.TAG: tag, "TMPDIR": str(here / "tmp"), "HOME": str(here), "COLUMNS": "100"}
    environment["MPLCONFIGDIR"] = str(here.parent / "matplotlib")  # its list of fonts takes seconds to make
    environment["DDPBENCH_CACHE"] = str(here.parent / "cache")
    environment |= {name: value.replace("{here}", str(here)) for name, value in given.env.items()}
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        limits = dict(given.limits) if given.launches else {resource.RLIMIT_AS: MEMORY, **given.limits}
        _be(argv, here, out, errors, environment, limits)
    code = _awaited(child, began + given.deadline_s)
    seconds = time.monotonic() - began
    texts = [path.read_bytes()[:1_000_000].decode("utf-8", "replace") for path in (out, errors)]
    for path in (out, errors):
        path.unlink()
    return oracle.Ended(argv=argv, code=code, out=texts[0], stderr=texts[1], seconds=seconds)


def _be(
    argv: Sequence[str],
    here: Path,
    out: Path,
    errors: Path,
    environment: Mapping[str, str],
    limits: Mapping[int, int],
) -> None:
    """Become the command; never return."""
    code = 70
    try:
        os.setsid()
        os.environ.update(environment)
        for number, path in ((1, out), (2, errors)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        os.chdir(here)
        tempfile.tempdir = None
        if resource.RLIMIT_FSIZE in limits:  # Python would leave cut byte code, which others then read
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for which, most in limits.items():
            resource.setrlimit(which, (most, most))
        from ddpbench.cli import run as command

        try:
            code = command(list(argv))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _awaited(child: int, deadline: float) -> int | None:
    """Return the exit code of a process; None if it had to be killed at its deadline."""
    pause = 0.002
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, 9)
            os.waitpid(child, 0)
            return None
        time.sleep(pause)
        pause = min(0.05, pause * 1.3)
