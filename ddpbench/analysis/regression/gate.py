"""A test's launches against what pytest-benchmark has saved of the same test: the plugin's gate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpbench.analysis.regression.changes import DRIFT, across
from ddpbench.analysis.regression.told import interval_words, percent
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, Interval, Timing
from ddpbench.errors import IdentityError, RequestError
from ddpbench.records.files import MOST_RECORDS, read_text

_CODE = ("experiment_digest", "workload_digest", "rank_code_digest")


@dataclass(frozen=True, slots=True)
class Gated:
    """What a gate has decided of a test."""

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


def gated(
    name: str, steps_s: Sequence[float], identity: Mapping[str, Any], baselines: Sequence[Path], limit: float
) -> Gated:
    """Return whether a test's launches are shown to be slower than its saved ones by more than `limit`.

    Each file is a session, and so is this run; the drift between sessions is in the interval.

    Raises:
        RequestError: there is no baseline.
        IdentityError: a file is none of pytest-benchmark's, or of another machine; what differs is named.
    """
    if not baselines:
        raise RequestError(
            "--ddpbench-gate needs --ddpbench-baseline FILE, which --benchmark-json=FILE has written"
        )
    before: list[Timing] = []
    for number, path in enumerate(baselines):
        saved = next(
            (one for one in _saved(path)["benchmarks"] if one.get("name") == name and one.get("extra_info")),
            None,
        )
        if saved is None:
            continue
        extra = saved["extra_info"]
        there = extra.get("identity", {})
        differing = [
            f"{key}: {there.get(key)!r} there, {identity.get(key)!r} here"
            for key in dict.fromkeys([*there, *identity])
            if key not in _CODE and there.get(key) != identity.get(key)
        ]
        if differing:
            raise IdentityError(f"{path} was measured under other conditions: {'; '.join(differing)}")
        before += _timings(extra.get("steps_s", ()), f"saved {number}")
    if not before:
        return Gated(name, None, False, f"{name}: not comparable: no baseline has it")
    comparison = across(before, _timings(steps_s, "now"), DRIFT)
    ratio = comparison.time_ratio()
    told = f"{percent(ratio.value)} ({interval_words(ratio)})"
    if comparison.rounds < MIN_ROUNDS or ratio.low is None or ratio.high is None:
        return Gated(
            name, ratio, False, f"{name}: cannot tell: {comparison.rounds} of {MIN_ROUNDS} rounds at least"
        )
    if ratio.low > 1 + limit:
        return Gated(name, ratio, True, f"{name}: slower by more than {100 * limit:g} %: {told}")
    verdict = "slower" if ratio.low > 1 else "faster" if ratio.high < 1 else "cannot tell"
    return Gated(name, ratio, False, f"{name}: {verdict}: {told}")


def _timings(steps_s: Sequence[float], session: str) -> list[Timing]:
    return [
        Timing(round=number, time_s=step, steps=1, samples=1, session=session)
        for number, step in enumerate(steps_s)
    ]
