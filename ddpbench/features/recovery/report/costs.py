"""Compute the cost of failures by case, and the tables that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ddpbench.analysis.recovery import RecoveryCost
from ddpbench.analysis.results import LaunchResult
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
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
"""The parts of a recovery in order, with their names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCosts:
    """The costs of a case's failures. Times are in seconds."""

    row: Row
    name: str
    found: RecoveryCost
    step_mean_s: float
    """Mean time of a step over launches; NaN if no launch was ok."""

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds of each part of a recovery, in the order of `PARTS`."""
        return tuple(self.found.parts.get(part, 0.0) for part in PARTS)


def costs_of(launches: Sequence[LaunchResult], rows: Sequence[Row]) -> list[FailureCosts]:
    """Return the costs for each case in which a failure happened, the lowest costs first."""
    failed = [(row, row.failed) for row in rows if row.failed is not None and row.failed.failures]
    names = _names([row for row, _ in failed])
    steps_s = {case_id: fmean(times) for case_id, times in raw_launches(launches).items()}
    costs = [
        FailureCosts(
            row=row, name=names[row.case_id], found=found, step_mean_s=steps_s.get(row.case_id, math.nan)
        )
        for row, found in failed
    ]
    return sorted(costs, key=lambda cost: math.inf if cost.found.total is None else cost.found.total.value)


def _names(rows: Sequence[Row]) -> dict[str, str]:
    names = Namer(row.case for row in rows)
    return {
        row.case_id: ", ".join(dict.fromkeys([RECOVERIES[row.case.recovery], *names.apart(row.case)]))
        for row in rows
    }


def failures_table(costs: Sequence[FailureCosts]) -> Table:
    """Return a table with the number, outcome and cost of each case's failures."""
    return Table(
        caption=(
            f"Failures, s: {MEDIAN}, with {MEDIAN_INTERVALS}. Recovery ends when the interrupted step is "
            "repeated. Training is at pace again when steps take on average at most 2 % longer than before the "
            "failure. Samples are those from which the final parameters follow. Each step's loss is compared "
            "with that of the uninterrupted training of the same round, in nine digits."
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
                Cell.count(cost.found.failures),
                Cell.count(cost.found.recoveries),
                Cell.estimate(cost.found.total),
                _at_pace(cost),
                _steps(cost.found.recomputed_steps),
                Cell.count(cost.found.lost),
                Cell.count(cost.found.repeated),
                _difference(cost.row.loss_difference),
            )
            for cost in costs
        ),
    )


def _at_pace(cost: FailureCosts) -> Cell:
    if cost.found.regained_launches == cost.found.recoveries:
        return Cell.estimate(cost.found.regained)
    return Cell(
        text=f"in {cost.found.regained_launches} of {cost.found.recoveries}", key=float("inf"), number=True
    )


def _steps(mean: float | None) -> Cell:
    return Cell(text="" if mean is None else f"{mean:.1f}", key=mean, number=True)


def _difference(found: tuple[float, int] | None) -> Cell:
    if found is None:
        return Cell(text="", number=True)
    value, steps = found
    text = "0" if value == 0 else f"{value:.1g}"
    return Cell(text=f"{text} in {steps:,} steps", key=value, number=True)


def rates_table(costs: Sequence[FailureCosts]) -> tuple[Table, ...]:
    """Return a table of the throughput before, during and after a node's absence, if a node returned."""
    left = [cost for cost in costs if cost.found.joined is not None]
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
                    *(
                        Cell.estimate(rate)
                        for rate in (cost.found.rates.before, cost.found.rates.away, cost.found.rates.after)
                    ),
                    Cell.estimate(cost.found.restored),
                    Cell.estimate(cost.found.joined),
                )
                for cost in left
            ),
        ),
    )
