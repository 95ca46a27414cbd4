"""The columns of the table of job sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.features.allocation.analysis.allocation import Allocation, JobSize
from ddpbench.units import format_seconds


@dataclass(frozen=True, slots=True)
class JobColumn:
    """A column of the table of job sizes: its title, and a function that returns its text for a job size."""

    title: str
    text: Callable[[JobSize], str]


def columns_of(allocation: Allocation) -> list[JobColumn]:
    """Return the columns of the table of job sizes, with times of epochs and runs and queue waits if known."""
    head = capital(allocation.unit)
    columns = [
        JobColumn("Nodes", lambda job: str(job.nodes)),
        JobColumn("Ranks", lambda job: f"{job.world_size} (base case)" if job.base else str(job.world_size)),
        JobColumn(f"{head}s", lambda job: f"{job.devices:,}"),
        JobColumn("Global batch", lambda job: f"{job.global_batch:,}"),
        JobColumn("Step, ms", lambda job: str(job.step_s.scaled(1e3))),
    ]
    if allocation.samples_per_epoch is not None:
        columns.append(JobColumn("Epoch", lambda job: _time(job.epoch_s)))
        columns.append(JobColumn(f"{head}-hours per epoch", lambda job: _hours(job.epoch_hours)))
    if allocation.epochs is not None or allocation.steps is not None:
        columns.append(JobColumn("Run", lambda job: _time(job.run_s)))
        columns.append(JobColumn(f"{head}-hours per run", lambda job: _hours(job.run_hours)))
    columns.append(JobColumn("Speed-up", lambda job: str(job.speedup)))
    columns.append(JobColumn("Efficiency", lambda job: str(job.efficiency)))
    if allocation.first is not None:
        columns.append(
            JobColumn("Queue wait", lambda job: "" if job.wait_s is None else format_seconds(job.wait_s))
        )
        columns.append(
            JobColumn(
                "Time to finish", lambda job: "" if job.finish_s is None else format_seconds(job.finish_s)
            )
        )
    return columns


def _time(interval: Interval | None) -> str:
    return "" if interval is None else format_seconds(interval.value)


def _hours(interval: Interval | None) -> str:
    return "" if interval is None else str(interval)
