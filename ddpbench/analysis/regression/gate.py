"""A test's launches against what pytest-benchmark has saved of the same test: the plugin's gate."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpbench.analysis.regression.apart import across
from ddpbench.analysis.regression.told import interval_words, percent, seen_words
from ddpbench.analysis.statistics.resolution import smallest_seen
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, Interval, Timing
from ddpbench.errors import IdentityError, RequestError
from ddpbench.records.files import MOST_RECORDS, read_text

_CODE = ("experiment_digest", "workload_digest", "rank_code_digest")


@dataclass(frozen=True, slots=True)
class Gated:
    """What a gate has decided of a test. Without a `ratio` it was not judged."""

    name: str
    ratio: Interval | None
    fails: bool
    sentence: str


def _saved(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(read_text(path, MOST_RECORDS))
    except FileNotFoundError:
        raise RequestError(f"--ddpbench-baseline {path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise IdentityError(f"{path} is no file of pytest-benchmark: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list):
        raise IdentityError(f"{path} is no file of pytest-benchmark: it has no benchmarks")
    return data


_SAME = (
    *(
        "strategy",
        "algorithm",
        "schedule",
        "options_json",
        "workload_options_json",
        "backend",
        "device",
        "world_size",
    ),
    *("threads_per_rank", "bucket_cap_mb", "local_batch", "scaling", "dtype", "precision", "env_json"),
)
"""Columns of a case in which a test and its baseline are not to differ."""


def check_baselines(paths: Sequence[Path]) -> None:
    """Whether baselines can be read at all, before anything is measured.

    Raises:
        RequestError: there is none, or one is given twice or not there.
        IdentityError: one is no file of pytest-benchmark's.
    """
    if not paths:
        raise RequestError(
            "--ddpbench-gate needs --ddpbench-baseline FILE, which --benchmark-json=FILE has written"
        )
    if len({path.resolve() for path in paths}) < len(paths):
        raise RequestError("--ddpbench-baseline: a file is given twice, which would count as two sessions")
    for path in paths:
        _saved(path)


def gated(
    test: str,
    steps_s: Sequence[float],
    *,
    row: Mapping[str, Any],
    identity: Mapping[str, Any],
    baselines: Sequence[Path],
    limit: float,
    drift: float | None = None,
) -> Gated:
    """Return whether a test's launches are shown to be slower than its saved ones by more than `limit`.

    Each file is a session, and so is this run; the `drift` between sessions is in the interval. `test` is the test's
    full name, `row` its case's columns.

    Raises:
        RequestError: there is no baseline.
        IdentityError: a file is none of pytest-benchmark's, or of another machine; what differs is named.
    """
    check_baselines(baselines)
    before: list[Timing] = []
    for number, path in enumerate(baselines):
        every = [one for one in _saved(path)["benchmarks"] if isinstance(one, dict)]
        saved = next((one for one in every if one.get("fullname") == test), None)
        if saved is None or not isinstance(saved.get("extra_info"), dict):
            continue
        extra = saved["extra_info"]
        there = extra.get("identity") or {}
        differing = [
            f"{key}: {there.get(key)!r} there, {identity.get(key)!r} here"
            for key in dict.fromkeys([*there, *identity])
            if key not in _CODE and there.get(key) != identity.get(key)
        ]
        if differing:
            raise IdentityError(f"{path} was measured under other conditions: {'; '.join(differing)}")
        apart = [key for key in _SAME if extra.get(key) != row.get(key)]
        if apart:
            told = ", ".join(f"{key} {extra.get(key)!r} there, {row.get(key)!r} here" for key in apart)
            return Gated(test, None, False, f"{test}: not comparable: {told}")
        steps = extra.get("steps_s")
        if not isinstance(steps, list) or not all(_is_time(step) for step in steps):
            raise IdentityError(f"{path} is damaged: the steps of {test} are no times")
        before += _timings(steps, f"saved {number}")
    if not before:
        return Gated(test, None, False, f"{test}: not comparable: no baseline has it")
    comparison = across(before, _timings(steps_s, "now"), drift)
    ratio = comparison.time_ratio()
    told = f"{percent(ratio.value)} ({interval_words(ratio)})"
    if comparison.rounds < MIN_ROUNDS or ratio.low is None or ratio.high is None:
        few = f"{comparison.rounds} of {MIN_ROUNDS} rounds at least"
        return Gated(test, None, False, f"{test}: cannot tell: {few}")
    if ratio.low > 1 + limit:
        return Gated(test, ratio, True, f"{test}: slower by more than {100 * limit:g} %: {told}")
    if ratio.low > 1 or ratio.high < 1:
        return Gated(test, ratio, False, f"{test}: {'slower' if ratio.low > 1 else 'faster'}: {told}")
    assert comparison.standard_error is not None
    seen = seen_words(smallest_seen(comparison.standard_error, comparison.df))
    return Gated(test, ratio, False, f"{test}: cannot tell: {told}; {seen}")


def _is_time(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value) and value > 0


def _timings(steps_s: Sequence[float], session: str) -> list[Timing]:
    return [
        Timing(round=number, time_s=step, steps=1, samples=1, session=session)
        for number, step in enumerate(steps_s)
    ]
