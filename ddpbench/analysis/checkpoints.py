"""Checkpoint cost: the duration of a launch's checkpoints by one method, and their share of training time.

A checkpoint lasts from the earliest rank's start to the latest rank's end, barriers included. A case's number is that
of its median launch. Shares of time use means over launches, because a job's total time includes rare slow checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import mean_step_s, step_time
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.records import Checkpoint

METHODS = ("plain", "dcp")
INTERVALS = (100, 1_000, 10_000)
"""Intervals between checkpoints, in steps, for which the share of time is reported."""
SMALL_SHARE = 0.01
"""Share of time for which the checkpoint interval is reported."""


def share(checkpoint_s: float, step_s: float, steps: int) -> float:
    """Return the share of time spent on checkpoints if one is made after every `steps` steps.

    The share is s / (s + k t) with s = `checkpoint_s`, k = `steps` and t = `step_s`.
    """
    return checkpoint_s / (checkpoint_s + steps * step_s)


def steps_for_share(checkpoint_s: float, step_s: float, wanted: float = SMALL_SHARE) -> int:
    """Return the shortest interval between checkpoints, in steps, at which their share of time is at most `wanted`.

    The interval is s (1 - p) / (p t), rounded up, with s = `checkpoint_s`, p = `wanted` and t = `step_s`.
    """
    exact = checkpoint_s * (1 - wanted) / (wanted * step_s)
    return max(1, math.ceil(exact * (1 - 1e-12)))  # 990.0000000001 is 990


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRun:
    """A launch's checkpoints by one method. Times are seconds, sizes bytes."""

    timing: Timing
    """Total time and number of the checkpoints; a checkpoint counts as a step."""
    first_s: float
    write_s: float
    """Writing time of the rank that writes longest, as a mean over checkpoints."""
    bytes: int
    """Bytes that all ranks together wrote per checkpoint."""
    writers: int
    """Number of ranks that wrote anything."""


def checkpoint_runs(
    number: int, ranks: Sequence[Sequence[Checkpoint]], *, one_host: bool
) -> dict[str, CheckpointRun]:
    """Return a launch's checkpoints by method, from all ranks' records.

    A checkpoint needs every rank's record. Without `one_host` the ranks have no common clock, so the slowest rank's
    time counts.
    """
    found: dict[str, CheckpointRun] = {}
    for method in METHODS:
        by_rank = [{each.index: each for each in own if each.method == method} for own in ranks]
        shared = sorted(set.intersection(*(set(each) for each in by_rank))) if by_rank else []
        groups = [[each[index] for each in by_rank] for index in shared]
        if not groups:
            continue
        times = [_length_s(group, one_host=one_host) for group in groups]
        writing = [max(each.write_ns or 0 for each in group) / 1e9 for group in groups]
        found[method] = CheckpointRun(
            timing=Timing(round=number, time_s=math.fsum(times), steps=len(times), samples=len(times)),
            first_s=times[0],
            write_s=math.fsum(writing) / len(writing),
            bytes=sum(each.bytes for each in groups[-1]),
            writers=sum(each.bytes > 0 for each in groups[-1]),
        )
    return found


def _length_s(group: Sequence[Checkpoint], *, one_host: bool) -> float:
    if one_host:
        return (max(each.end_ns for each in group) - min(each.start_ns for each in group)) / 1e9
    return max(each.end_ns - each.start_ns for each in group) / 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCost:
    """A case's checkpoints by one method, over all its launches. Times are seconds, sizes bytes.

    `cost` is the time of a checkpoint, and `step_s` the time of a training step. Both are medians over launches.
    `mean_s` and `step_mean_s` are the corresponding means.
    """

    case_id: str
    method: str
    cost: Interval
    mean_s: float
    first_s: float
    write_s: float
    bytes: int
    writers: int
    checkpoints: int
    launches: int
    step_s: float
    step_mean_s: float

    def share(self, steps: int) -> float:
        """Return the share of time spent on checkpoints if one is made after every `steps` steps."""
        return share(self.mean_s, self.step_mean_s, steps)

    @property
    def steps_for_small_share(self) -> int:
        """Return the fewest steps between checkpoints at which their share of time is at most `SMALL_SHARE`."""
        return steps_for_share(self.mean_s, self.step_mean_s)

    @classmethod
    def column_names(cls) -> list[str]:
        """Return the keys of `columns()`."""
        none = {one.name: 1 for one in fields(cls)} | {"cost": Interval(value=1.0)}
        return list(cls(**none).columns())  # type: ignore[arg-type]

    def columns(self) -> dict[str, Any]:
        """Return the cost as plain values by column name."""
        return {
            "case_id": self.case_id,
            "method": self.method,
            "cost_s": self.cost.value,
            "cost_ci_low_s": self.cost.low,
            "cost_ci_high_s": self.cost.high,
            "first_s": self.first_s,
            "write_s": self.write_s,
            "bytes": self.bytes,
            "writers": self.writers,
            "checkpoints": self.checkpoints,
            "launches": self.launches,
            "step_time_s": self.step_s,
            **{f"share_{steps}": self.share(steps) for steps in INTERVALS},
            "steps_for_1_percent": self.steps_for_small_share,
            "cost_mean_s": self.mean_s,
            "step_time_mean_s": self.step_mean_s,
        }


def checkpoint_costs(
    case_id: str, launches: Sequence[Mapping[str, CheckpointRun]], training: Sequence[Timing]
) -> list[CheckpointCost]:
    """Return a case's checkpoint costs, one for each method that its launches used.

    Args:
        case_id: the case's id.
        launches: checkpoints of each launch, by method.
        training: timings of the case's training steps.
    """
    costs: list[CheckpointCost] = []
    for method in METHODS:
        runs = [launch[method] for launch in launches if method in launch]
        if not runs:
            continue
        costs.append(
            CheckpointCost(
                case_id=case_id,
                method=method,
                cost=step_time([run.timing for run in runs]),
                mean_s=mean_step_s([run.timing for run in runs]),
                first_s=math.fsum(run.first_s for run in runs) / len(runs),
                write_s=math.fsum(run.write_s for run in runs) / len(runs),
                bytes=max(run.bytes for run in runs),
                writers=max(run.writers for run in runs),
                checkpoints=sum(run.timing.steps for run in runs),
                launches=len(runs),
                step_s=step_time(training).value,
                step_mean_s=mean_step_s(training),
            )
        )
    return costs
