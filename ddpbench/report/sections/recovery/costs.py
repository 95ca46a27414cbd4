"""What failures cost, by case, from the table of cases; and the tables that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ddpbench.analysis.recovery import Rates, RecoveryCost
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.summary import RunSummary
from ddpbench.naming import Namer
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.rows import Row, raw_launches
from ddpbench.spec.grouping import FACETS, RECOVERIES

PARTS = {
    "detection_s": "Detection",
    "stopping_s": "Stopping ranks",
    "rendezvous_s": "Rendezvous",
    "starting_s": "Starting ranks",
    "meeting_s": "Process groups",
    "restoring_s": "Restoring",
    "recomputing_s": "Recomputing",
}
"""The parts of a recovery, in their order, and what they are called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """A case's failures. Times are seconds."""

    row: Row
    name: str
    failures: int
    recoveries: int
    total: Interval | None
    restored: Interval | None
    at_pace: Interval | None
    at_pace_count: int
    parts: tuple[float, ...]
    steps: float | None
    snapshot: Interval | None
    snapshot_mean_s: float | None
    """Means over launches, `restored_mean_s` and `step_mean_s` too."""
    restored_mean_s: float | None
    snapshot_bytes: int
    lost: int
    repeated: int
    difference: float | None
    compared: int
    """Steps whose losses were compared."""
    joining: Interval | None
    rates: Rates
    step_mean_s: float
    """NaN where no launch went well."""
    unreadable: str


def costs_of(summary: RunSummary, rows: Sequence[Row]) -> list[Cost]:
    """Return what failures cost, the least first."""
    failed = [(row, row.failed) for row in rows if row.failed is not None and row.failed.failures]
    names = _names([row for row, _ in failed])
    steps_s = {case_id: fmean(times) for case_id, times in raw_launches(summary).items()}
    found = [_cost(row, cost, names[row.case_id], steps_s.get(row.case_id, math.nan)) for row, cost in failed]
    return sorted(found, key=lambda cost: cost.total.value if cost.total is not None else float("inf"))


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """Return what fails in each case, and whatever else tells it from others."""
    names = Namer(row.case for row in rows)
    return {
        row.case_id: ", ".join(dict.fromkeys([RECOVERIES[row.case.recovery], *names.apart(row.case)]))
        for row in rows
    }


def _cost(row: Row, found: RecoveryCost, name: str, step_mean_s: float) -> Cost:
    difference, compared = row.loss_difference or (None, 0)
    return Cost(
        row=row,
        name=name,
        failures=found.failures,
        recoveries=found.recoveries,
        total=found.total,
        restored=found.restored,
        at_pace=found.regained,
        at_pace_count=found.regained_launches,
        parts=tuple(found.parts.get(part, 0.0) for part in PARTS),
        steps=found.recomputed_steps,
        snapshot=found.snapshot,
        snapshot_mean_s=found.snapshot_mean_s,
        restored_mean_s=found.restored_mean_s,
        snapshot_bytes=found.snapshot_bytes,
        lost=found.lost,
        repeated=found.repeated,
        difference=difference,
        compared=compared,
        joining=found.joined,
        rates=found.rates,
        step_mean_s=step_mean_s,
        unreadable="; ".join(found.unreadable),
    )


def failures_table(costs: Sequence[Cost]) -> Table:
    """Return the table of failures: how many, what came of them, and what they cost."""
    return Table(
        caption=(
            f"Failures, s: {MEDIAN}, with {MEDIAN_INTERVALS}. Recovery ends when the step that the failure "
            "came before is made again; at pace again is when steps take at most 2 % longer than before it, on average "
            "from there on. Samples are those of the history that the final parameters come from. Each step's loss is "
            "held against that of the uninterrupted training of the same round, in nine digits."
        ),
        columns=(
            Column("What fails"),
            Column("Failures", number=True),
            Column("Recovered", number=True),
            Column("Recovery, s", number=True),
            Column("At pace again, s", number=True),
            Column("Steps recomputed", number=True),
            Column("Samples lost", number=True),
            Column("Samples repeated", number=True),
            Column("Loss differs by", number=True),
        ),
        rows=tuple(
            (
                Cell(text=cost.name),
                Cell.count(cost.failures),
                Cell.count(cost.recoveries),
                Cell.estimate(cost.total),
                _at_pace(cost),
                Cell(text="" if cost.steps is None else f"{cost.steps:.1f}", key=cost.steps, number=True),
                Cell.count(cost.lost),
                Cell.count(cost.repeated),
                _difference(cost.difference, cost.compared),
            )
            for cost in costs
        ),
    )


def _at_pace(cost: Cost) -> Cell:
    """Return when steps were as fast as before, where they were in every launch; else in how many."""
    if cost.at_pace_count == cost.recoveries:
        return Cell.estimate(cost.at_pace)
    return Cell(text=f"in {cost.at_pace_count} of {cost.recoveries}", key=float("inf"), number=True)


def _difference(value: float | None, steps: int) -> Cell:
    if value is None:
        return Cell(text="", number=True)
    told = "0" if value == 0 else f"{value:.1g}"
    return Cell(text=f"{told} in {steps:,} steps", key=value, number=True)


def rates_table(costs: Sequence[Cost]) -> tuple[Table, ...]:
    """Return the table of throughput before, while a node is away and after; none where no node came back."""
    left = [cost for cost in costs if cost.joining is not None]
    if not left:
        return ()
    return (
        Table(
            caption=(
                "A node that leaves and comes back: samples per second of the job's steps, without snapshots, and the "
                "pauses in which it trains nothing, s. Each rank keeps its local batch."
            ),
            columns=(
                Column("Case"),
                Column("Before, samples/s", number=True),
                Column("While it is away, samples/s", number=True),
                Column("After, samples/s", number=True),
                Column("Pause as it leaves, s", number=True),
                Column("Pause as it returns, s", number=True),
            ),
            rows=tuple(
                (
                    Cell(text=f"{cost.row.name}, {FACETS['agents'].word(cost.row.case)}"),
                    *(Cell.estimate(rate) for rate in (cost.rates.before, cost.rates.away, cost.rates.after)),
                    Cell.estimate(cost.restored),
                    Cell.estimate(cost.joining),
                )
                for cost in left
            ),
        ),
    )
