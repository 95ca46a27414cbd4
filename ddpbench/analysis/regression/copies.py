"""Detect, by the times of launches, runs that are copies of each other and would count as several sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from ddpbench.analysis.regression.sides import Side
from ddpbench.errors import RequestError
from ddpbench.records import RunDir
from ddpbench.records.machine import read_merged
from ddpbench.text_safety import on_one_line


def check_no_copies(sides: Sequence[Side]) -> None:
    """Raise an error if one side is a copy, an export or a continuation of another side's run.

    Raises:
        RequestError: two sides have at least half of the smaller one's launches in common.
    """
    every = [(side, set(_launches(side))) for side in sides]
    for (first, before), (second, after) in combinations(every, 2):
        if _are_copies(before, after):
            raise RequestError(
                f"{on_one_line(str(second.path))} has the same launches as {on_one_line(str(first.path))}: one "
                "run is a copy or a continuation of the other; give only one of them"
            )


def merges_with_sources(sides: Sequence[Side], paths: Collection[Path]) -> dict[Path, list[Path]]:
    """Return the merged runs among `paths` that have sources among the sides, with the sources' paths.

    A merge of only some of the sources also counts as one.

    Raises:
        IdentityError: the record of a run's sources cannot be read.
    """
    sources = {
        side.path: frozenset(
            str(one["fingerprint"]) for one in read_merged(RunDir(side.path)).get("sources", ())
        )
        for side in sides
        if side.path.is_dir()
    }
    merged = [side for side in sides if side.path in paths and sources.get(side.path)]
    launches = {side.path: set(_launches(side)) for side in sides} if merged else {}
    found_of: dict[Path, list[Path]] = {}
    for side in merged:
        own = sources[side.path]
        found = [
            other.path
            for other in sides
            if sources.get(other.path, frozenset()) < own
            and _are_copies(launches[side.path], launches[other.path])
        ]
        if found:
            found_of[side.path] = found
    return found_of


def _are_copies(first: Set[tuple[str, str]], second: Set[tuple[str, str]]) -> bool:
    """Return whether two runs share at least half of the smaller one's launches."""
    return bool(first and second) and 2 * len(first & second) >= min(len(first), len(second))


def _launches(side: Side) -> Iterator[tuple[str, str]]:
    """Yield a key for each launch: its times to ten digits. Exports change the rounds and the last digits."""
    for run in side.cases:
        case_id = replace(run.case, experiment="").case_id
        for timing in run.timings:
            yield case_id, f"{timing.step_s:.9e}"
