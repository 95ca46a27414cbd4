"""The runs of a history: found, read, put in order, and refused where they are not what they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from ddpbench.analysis.regression import Side, read_side, unlike
from ddpbench.analysis.regression.baselines import find_side, machine_folder
from ddpbench.analysis.regression.copies import check_no_copies, merges_with_sources
from ddpbench.analysis.regression.saved import read_saved
from ddpbench.errors import IdentityError, RequestError
from ddpbench.records import RunDir
from ddpbench.records.rundir import explain_read_error
from ddpbench.records.submission_dir import run_at
from ddpbench.texts import on_one_line, shortened
from ddpbench.units import series_of, utc_of

_MOST_LISTED = 12
"""Differences that a refusal lists."""
_MOST_NAMED = 3
"""Sources of a merged run that a sentence names."""


def read_sides(
    paths: Sequence[Path],
    *,
    as_given: bool = False,
    across: bool = False,
    on_skip: Callable[[Path, str], None] = lambda *_: None,
) -> list[Side]:
    """Return the runs of these directories, and of those that hold some, in the order in which they were measured.

    Each is called by its directory's name, or by its path where several have the same.

    Args:
        paths: run directories, files of pytest-benchmark, names of saved baselines, or folders of runs or files.
        as_given: leave them in this order; the runs in a folder are in the order of their names.
        across: allow runs of different machines, torch and the like.
        on_skip: called with each folder, given or inside a given one, that holds no run, and for a submission's with
            why its run cannot be shown; "" for any other. And with each merged run in a folder that has its sources
            too, or merges of some of them: it is left out, and why.

    Raises:
        RequestError: there are fewer than two, one is given twice, or it is not known when one was measured.
        IdentityError: one cannot be read, or machines differ and that was not asked for.
    """
    found, inside = _found(paths, on_skip)
    _check_once(found)
    names = [run.resolve().name if run.is_dir() else run.stem for run in found]
    sides = [
        _read(run, name if names.count(name) == 1 else str(run))
        for run, name in zip(found, names, strict=True)
    ]
    left_out = merges_with_sources(sides, inside)
    for path, sources in left_out.items():
        named = [on_one_line(str(path)) for path in sources[:_MOST_NAMED]]
        others = [f"{len(sources) - _MOST_NAMED} more"] if len(sources) > _MOST_NAMED else []
        on_skip(path, f"{path} was merged from {series_of([*named, *others])}, of which each counts once")
    sides = [side for side in sides if side.path not in left_out]
    if len(sides) < 2:
        raise RequestError(
            f"{on_one_line(str(sides[0].path))} is the only run: give several, or a folder of them; ddpbench report "
            "has what is in one"
        )
    check_no_copies(sides)
    if not as_given:
        sides.sort(key=_measured_at)
    differing = differences(sides)
    if differing and not across:
        more = len(differing) - _MOST_LISTED
        listed = [f"  {line}" for line in differing[:_MOST_LISTED]] + (
            [f"  and {more} more"] if more > 0 else []
        )
        raise IdentityError(
            "the runs were measured under other conditions: a change would not be the program's. Draw them all the "
            "same with --across\n" + "\n".join(listed)
        )
    return sides


def differences(sides: Sequence[Side]) -> list[str]:
    """Return in what machines, torch and the like change from one run to the next."""
    return [line for before, after in pairwise(sides) for line in unlike(before, after)]


def _read(path: Path, name: str) -> Side:
    return read_side(RunDir(path), name) if path.is_dir() else read_saved(path, name)


def _found(paths: Sequence[Path], on_skip: Callable[[Path, str], None]) -> tuple[list[Path], frozenset[Path]]:
    """Return the runs and saved files that these paths and names mean; and those that only their folder was given of.

    Raises:
        RequestError: there is none, or a path is not a folder.
    """
    found: list[Path] = []
    inside: set[Path] = set()
    without: dict[Path, str] = {}
    for path in paths:
        runs, skipped = _runs_in(path)
        found += runs
        inside.update(run for run in runs if path.is_dir() and not run_at(path).path.samefile(run))
        without |= skipped if runs else {path: ""}
    if not found:
        raise RequestError(
            f"{next(iter(without))} is not a run directory and holds none, nor a file of pytest-benchmark: plan.json "
            "is missing"
        )
    for folder, why in without.items():
        on_skip(folder, why)
    return found, frozenset(inside)


def _runs_in(path: Path) -> tuple[list[Path], dict[Path, str]]:
    """Return the run or saved file that a path or a name means, or those in a folder, by name; and its other folders.

    The directory of a submission means one run, as everywhere: those of its jobs have the same launches. Where that
    is not there, the folder's reason says why.

    Raises:
        RequestError: it means none, or cannot be read.
    """
    path = find_side(str(path))
    path = run_at(path).path if path.is_dir() else path
    if RunDir(path).plan.exists() or path.is_file():
        return [path], {}
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {explain_read_error(error)}") from None
    runs, others = _run_directories([each for each in inside if each.is_dir()])
    runs = runs or [each for each in inside if each.suffix == ".json" and each.is_file()]
    if (
        not runs and (path / machine_folder()).is_dir()
    ):  # pytest-benchmark's storage: this machine's part of it
        return _runs_in(path / machine_folder())
    return runs, others


def _run_directories(folders: Sequence[Path]) -> tuple[list[Path], dict[Path, str]]:
    """Return the runs that these folders mean, and the folders that mean none, but hidden ones, each with why."""
    runs: list[Path] = []
    others: dict[Path, str] = {}
    for folder in folders:
        try:
            run, why = run_at(folder), ""
            is_there = run.plan.exists()
        except RequestError as error:
            is_there, why = False, str(error)
        except OSError as error:
            is_there, why = False, f"{folder} cannot be read: {explain_read_error(error)}"
        if is_there:
            runs.append(run.path)
        elif not folder.name.startswith("."):
            others[folder] = why
    return runs, others


def _check_once(paths: Sequence[Path]) -> None:
    """Refuses a directory that is given twice.

    Raises:
        RequestError: one is.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise RequestError(f"{on_one_line(str(path))} is given twice: a run counts once")
        seen.add(path.resolve())


def _measured_at(side: Side) -> datetime:
    """Return when a run was started.

    Raises:
        RequestError: its records do not say.
    """
    started = started_utc(side)
    moment = utc_of(started)
    if moment is None:
        said = f"says {shortened(started)}" if started else "does not say"
        raise RequestError(
            f"{on_one_line(str(side.path))} {said} when it was measured: give the runs in order, with --as-given"
        )
    return moment


def started_utc(side: Side) -> str:
    """Return when a run was started, as its records have it; empty where they do not say."""
    return str(side.machine.get("context", {}).get("started_utc") or "")
