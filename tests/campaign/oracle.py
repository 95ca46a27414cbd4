"""Rules for every input and every fault. A rule returns in words what it found wrong; an empty result is
good.

The rules know no input and no fault: their arguments say what is expected.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import psutil

from ddpbench.analysis.table.columns import TABLE

TAG = "DDPBENCH_TEST_TAG"
"""Environment variable that all processes of one trial inherit."""
LONGEST = 4_000
"""Most characters on standard error: nobody reads more."""
LEFT_S = 5.0
"""Seconds after which nothing of a command may be left."""

_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef\ufffe\uffff]"
)
_WAY_OUT = re.compile(
    r"\b(use|choose|known|allowed|between|at (least|most)|must|did you mean|resume|again|expected|needs?|lower"
    r"|raise|give|name|free|remove|delete|restore|wait|stop|write|pass|set|see|instead|rerun|install|one of"
    r"|move|from \S+ to|should be|belongs|leave (it |one )?out|save|is the (least|most)|by less|smaller|valid|missing"
    r"|put \S+ back|make (the|it))\b"
    r"|--\w|\w = \S|\.py:\d+\)|\.py, line \d+: ",  # an option, a setting, a user's own line
    re.IGNORECASE,
)
_AGENTS_OWN = re.compile(r"E\d{4} \S+ \d+ (?:\S*/)?torch/distributed/elastic/agent/server/api\.py:\d+\]")
"""Torch's logger leaves out the folder of `sys.path` that its file is in, or one above that."""
_OF_TIME = {"s", "samples/s", "bit/s", "MB/s", "GB/s", "steps/s"}


@dataclass(frozen=True)
class Ended:
    """A command that has ended; its code is None if it was still running at its deadline."""

    argv: Sequence[str]
    code: int | None
    out: str
    stderr: str
    """On standard error."""
    seconds: float


def of_command(ended: Ended, *, codes: Iterable[int], named: Sequence[str] = ()) -> list[str]:
    """Return what a command got wrong: its exit code, and its messages. `named` are words of the cause, all
    required.
    """
    codes = tuple(codes)
    said = ended.out + ended.stderr
    wrong: list[str] = []
    if ended.code is None:
        wrong.append(f"still running after {ended.seconds:.0f} s")
    elif ended.code not in codes:
        wrong.append(f"exit code {ended.code}, not {' or '.join(map(str, codes))}")
    if "Traceback (most recent call last)" in said:
        wrong.append("a traceback")
    if found := _CONTROL.search(said):
        wrong.append(f"a control character, {found.group()!r}, reaches the terminal")
    if len(ended.stderr) > LONGEST:
        wrong.append(f"{len(ended.stderr)} characters are said")
    if ended.code in (1, 2):
        if not ended.stderr.strip():
            wrong.append("no word of what is wrong")
        elif ended.code == 2 and not _WAY_OUT.search(ended.stderr):  # failures in a rank are the user's own
            wrong.append("no word of what to do")
        wrong += [f"{word!r} is not named" for word in named if word not in ended.stderr]
    if ended.code == 2 and ended.out.strip():
        wrong.append("a wrong request is answered on standard output")
    return wrong


def without_exit_barrier(ended: Ended) -> Ended:
    """Return the output of torchrun's agents without their own traceback if one left before the other could
    answer.

    All their slots have ended by then. The agent with the store does not wait for the others' last question
    (`_exit_barrier` in torch/distributed/elastic/agent/server/api.py of torch 2.13): it ends with 0 either
    way.
    """
    if "Error waiting on exit barrier" not in ended.stderr:
        return ended
    lines = ended.stderr.splitlines(keepends=True)
    return replace(ended, stderr="".join(line for line in lines if not _AGENTS_OWN.match(line)))


def processes_of(tag: str) -> list[psutil.Process]:
    """Return the live processes of one trial, except this one."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TAG) == tag:
                found.append(process)
    return found


def listing(folders: Iterable[Path]) -> set[Path]:
    """Return all files in these folders, except what Python keeps for imported modules."""
    found = {path for folder in folders if folder.is_dir() for path in folder.rglob("*")}
    return {path for path in found if path.name != "__pycache__" and path.suffix != ".pyc"}


def namespaces() -> set[str]:
    """Return network namespaces that a process is in or that have a name."""
    found: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            found.add(str(Path(f"/proc/{process.pid}/ns/net").readlink()))
    named = Path("/run/netns")
    return found | ({path.name for path in named.iterdir()} if named.is_dir() else set())


def beyond_loopback() -> list[str]:
    """Return addresses with a listener that others can reach."""
    return sorted(
        {
            f"{one.laddr.ip}:{one.laddr.port}"
            for kind in ("tcp4", "tcp6")
            for one in psutil.net_connections(kind)
            if one.status == psutil.CONN_LISTEN and not _is_loopback(one.laddr.ip)
        }
    )


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "::ffff:127.")) or address == "::1"


@dataclass(frozen=True)
class Before:
    """Contents of places shared with others, before a command."""

    files: set[Path]
    namespaces: set[str]

    @classmethod
    def now(cls, folders: Sequence[Path]) -> Before:
        """Return the state of these folders; POSIX semaphores are among the files of /dev/shm."""
        return cls(files=listing(folders), namespaces=namespaces())


def of_what_is_left(before: Before, folders: Sequence[Path], tag: str) -> list[str]:
    """Return what a command left outside its run directory, `LEFT_S` after its end; then end its processes."""
    deadline = time.monotonic() + LEFT_S
    while wrong := _left(before, folders, tag):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for process in processes_of(tag):
        with contextlib.suppress(psutil.Error):
            process.kill()
    return wrong


def _left(before: Before, folders: Sequence[Path], tag: str) -> list[str]:
    processes = [f"{each.pid} {' '.join(each.cmdline()[:6])}" for each in _alive(processes_of(tag))]
    files = sorted(map(str, listing(folders) - before.files))
    spaces = sorted(namespaces() - before.namespaces)
    return [
        f"left: {kind} {', '.join(found[:5])}"
        for kind, found in (("processes", processes), ("files", files), ("namespaces", spaces))
        if found
    ]


def _alive(processes: Iterable[psutil.Process]) -> Iterable[psutil.Process]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.cmdline()
            yield process


def finished(run: Path) -> dict[str, tuple[str, str]]:
    """Return, for each finished launch, its status and a digest of its records."""
    found: dict[str, tuple[str, str]] = {}
    for outcome in run.glob("cases/*/*/outcome.json"):
        if ".aside-" in outcome.parent.name:
            continue
        digest = hashlib.sha256()
        for path in sorted(outcome.parent.iterdir()):
            if path.suffix in (".json", ".jsonl") and path.is_file():
                digest.update(path.name.encode() + path.read_bytes())
        with contextlib.suppress(ValueError):
            status = json.loads(outcome.read_text(encoding="utf-8"))["status"]
            found[str(outcome.parent.relative_to(run))] = (status, digest.hexdigest())
    return found


def of_launches(before: Mapping[str, tuple[str, str]], after: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return finished launches that were lost or repeated; failed ones may be."""
    good = {name: state for name, state in before.items() if state[0] == "ok"}
    lost = sorted(good.keys() - after.keys())
    changed = sorted(name for name in good.keys() & after.keys() if after[name] != good[name])
    return [f"lost: {name}" for name in lost] + [f"done again: {name}" for name in changed]


def timeless() -> list[str]:
    """Return the columns of `cases.csv` without times: equal in two runs of one plan."""
    return [
        column.name
        for column in TABLE
        if (column.source in ("plan", "proof") or column.name in ("status", "launches", "parameters"))
        and column.unit not in _OF_TIME
        and column.name not in ("experiment", "error")
    ]


def of_table(undisturbed: Path, run: Path, *, cases: Iterable[str] | None = None) -> list[str]:
    """Return where a finished run's `cases.csv` differs from an undisturbed one's, apart from times."""
    columns = timeless()
    wanted, found = (
        pd.read_csv(folder / "cases.csv", dtype="string", keep_default_na=False).set_index(
            "case_id", drop=False
        )
        for folder in (undisturbed, run)
    )
    if cases is not None:
        kept = list(cases)
        wanted, found = wanted.loc[kept], found.loc[[case for case in kept if case in found.index]]
    if list(wanted.index) != list(found.index):
        return [f"cases.csv has the cases {', '.join(found.index)}, not {', '.join(wanted.index)}"]
    return [
        f"cases.csv: {column} of {case} is {found.at[case, column]!r}, not {wanted.at[case, column]!r}"
        for column in columns
        if column in wanted
        for case in wanted.index
        if found.at[case, column] != wanted.at[case, column]
    ]
