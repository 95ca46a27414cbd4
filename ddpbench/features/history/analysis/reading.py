"""Find, read and order the runs of a history, and refuse runs that cannot be compared."""

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
from ddpbench.text_safety import on_one_line, shortened
from ddpbench.units import series_of, utc_of

_MOST_LISTED = 12
"""Number of differences between runs that a refusal lists."""
_MOST_NAMED = 3
"""Number of sources of a merged run that a sentence names."""


def read_sides(
    paths: Sequence[Path],
    *,
    as_given: bool = False,
    across: bool = False,
    on_skip: Callable[[Path, str], None] = lambda *_: None,
) -> list[Side]:
    """Return the runs in these directories, or in folders of runs, in the order in which they were measured.

    Each run is named by its directory, or by its path if that is ambiguous.

    Args:
        paths: run directories, files of pytest-benchmark, names of saved baselines, or folders of runs or files.
        as_given: keep the order of `paths`; runs within a folder are ordered by name.
        across: allow runs on different machines, torch versions and the like.
        on_skip: called with each folder that is left out, and the reason. For a folder without a run, the reason is
            empty, or says why a submission's run cannot be shown. For a merged run, the reason is that its sources, or
            merges of its sources, are in the same folder.

    Raises:
        RequestError: there are fewer than two runs, a run is given twice, or a run's time of measurement is unknown.
        IdentityError: a run cannot be read, or machines differ and `across` is False.
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
        named = series_of([on_one_line(str(path)) for path in sources], most=_MOST_NAMED)
        on_skip(path, f"{path} was merged from {named}, but each run may count only once")
    sides = [side for side in sides if side.path not in left_out]
    if len(sides) < 2:
        raise RequestError(
            f"only one run is given, {on_one_line(str(sides[0].path))}: give several runs, or a folder of runs. "
            "ddpbench report describes a single run"
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
            "the runs were measured under different conditions, so a change may have another cause "
            "than the program. To draw them anyway, add --across\n" + "\n".join(listed)
        )
    return sides


def differences(sides: Sequence[Side]) -> list[str]:
    """Return a text for each difference in machine, torch and the like between one run and the next."""
    return [line for before, after in pairwise(sides) for line in unlike(before, after)]


def _read(path: Path, name: str) -> Side:
    return read_side(RunDir(path), name) if path.is_dir() else read_saved(path, name)


def _found(paths: Sequence[Path], on_skip: Callable[[Path, str], None]) -> tuple[list[Path], frozenset[Path]]:
    """Return the runs and saved files selected, and the subset found inside folders.

    Raises:
        RequestError: no run or file is found, or a path cannot be read.
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
            f"{next(iter(without))} has no runs: it is not a run directory (plan.json is missing), a folder of "
            "run directories or a pytest-benchmark file"
        )
    for folder, why in without.items():
        on_skip(folder, why)
    return found, frozenset(inside)


def _runs_in(path: Path) -> tuple[list[Path], dict[Path, str]]:
    """Return the runs or saved files at a path, and why other folders in it have none (empty if unknown).

    A submission's directory is a single run, because the runs of its jobs have the same launches.

    Raises:
        RequestError: the path selects no run, or cannot be read.
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
    ):  # in pytest-benchmark's storage, take this machine's folder
        return _runs_in(path / machine_folder())
    return runs, others


def _run_directories(folders: Sequence[Path]) -> tuple[list[Path], dict[Path, str]]:
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
    """Check that no run is given twice.

    Raises:
        RequestError: a run is given twice.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise RequestError(f"{on_one_line(str(path))} is given twice: give it once")
        seen.add(path.resolve())


def _measured_at(side: Side) -> datetime:
    """Return the time at which a run was started.

    Raises:
        RequestError: the run's records do not contain it.
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
    """Return a run's recorded start time; empty if it is not recorded."""
    return str(side.machine.get("context", {}).get("started_utc") or "")
