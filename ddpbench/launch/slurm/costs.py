"""Costs of a submission's jobs in launches, node hours and GPU hours, estimated before any job is submitted."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.launch.external import JobShape
from ddpbench.launch.slurm.request import Request
from ddpbench.launch.slurm.submission import Submission, plan_of, time_of
from ddpbench.runtime.progress import to_prove
from ddpbench.spec import Case
from ddpbench.units import format_seconds

_GPUS = re.compile(r"(?:gres[:/])?gpu(?:[:=][A-Za-z][\w.-]*)?(?:[:=](\d{1,6}))?(?:\(.*\))?", re.ASCII)
_COUNT = re.compile(r"(?:[A-Za-z][\w.-]*:)?(\d{1,6})", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeCosts:
    """Costs of the jobs on one number of nodes.

    `least` and `most` are the numbers of launches in the fewest and in the most rounds. `estimated_s` is the estimated
    time of `most` launches, at most the budget. `limit_s` is the time limit of one job. Both are in seconds.
    """

    name: str
    nodes: int
    gpus_per_node: float
    least: int
    most: int
    proofs: int
    estimated_s: float
    limit_s: float

    @property
    def jobs(self) -> int:
        """The approximate number of consecutive jobs that all launches need with this time limit."""
        return max(1, -int(-self.estimated_s // self.limit_s))

    @property
    def hours(self) -> tuple[float, float]:
        """The hours for which the jobs occupy their nodes: the estimate and the maximum."""
        return self.estimated_s / 3600, max(self.estimated_s, self.jobs * self.limit_s) / 3600

    def sentence(self) -> str:
        """Return the costs in one line of text."""
        launches = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        many = "launch" if launches == "1" else "launches"
        proofs = f" and {self.proofs} proof{'s' if self.proofs != 1 else ''}" if self.proofs else ""
        after = f", so about {self.jobs} jobs one after the other" if self.jobs > 1 else ""
        limit = f"time limit {format_seconds(self.limit_s)}{after}"
        return f"{self.name}: {launches} {many}{proofs}; {_hours([self])}; {limit}"


def costs_of(submission: Submission) -> list[SizeCosts]:
    """Return the costs of a submission for each number of nodes, including launches that are already measured.

    Raises:
        RequestError: an existing run cannot be read.
    """
    costs = []
    for size in submission.sizes:
        plan = plan_of(submission, size)
        cases = [entry.case for entry in plan.runnable]
        budget = plan.budget
        costs.append(
            SizeCosts(
                name=size.name,
                nodes=size.shape.nodes,
                gpus_per_node=gpus_per_node(submission.request, size.shape, cases),
                least=len(cases) * budget.rounds_min,
                most=len(cases) * budget.rounds_max,
                proofs=len(to_prove(plan.runnable)),
                estimated_s=min(size.estimated_s, budget.total),
                limit_s=60.0 * math.ceil(time_of(submission, size, plan) / 60),  # Slurm counts minutes
            )
        )
    return costs


def total(costs: Sequence[SizeCosts]) -> str:
    """Return the costs of all jobs together, in one line of text."""
    least, most = sum(one.least for one in costs), sum(one.most for one in costs)
    return f"all jobs: {least if least == most else f'{least} to {most}'} launches; {_hours(costs)}"


def gpus_per_node(request: Request, shape: JobShape, cases: Sequence[Case]) -> float:
    """Return how many GPUs a job requests per node: by an option, or one per rank on GPUs."""
    if (value := request.value("gpus-per-node")) is not None:
        return _count(value)
    if (value := request.value("gpus-per-task")) is not None:
        return _count(value) * shape.ranks_per_node
    if (value := request.value("gpus")) is not None:
        return _count(value) / shape.nodes
    if (value := request.value("gres")) is not None and (asked := _gpus_in(value)) is not None:
        return asked
    if (value := request.value("tres-per-task")) is not None and (asked := _gpus_in(value)) is not None:
        return asked * shape.ranks_per_node
    return shape.ranks_per_node if any(case.device == "cuda" for case in cases) else 0


def _gpus_in(value: str) -> int | None:
    counts = [int(match[1] or 1) for part in value.split(",") if (match := _GPUS.fullmatch(part.strip()))]
    return sum(counts) if counts else None


def _count(value: str) -> int:
    """Return the sum of the numbers in `8`, `a100:8` or `a100:4,v100:4`."""
    parts = [_COUNT.fullmatch(part.strip()) for part in value.split(",")]
    return sum(int(match[1]) for match in parts if match)


def _hours(costs: Sequence[SizeCosts]) -> str:
    kinds = {
        "node hours": [float(one.nodes) for one in costs],
        "GPU hours": [one.nodes * one.gpus_per_node for one in costs],
    }
    parts = []
    for words, each in kinds.items():
        if not any(each):
            continue
        about, most = (
            sum(count * one.hours[which] for count, one in zip(each, costs, strict=True)) for which in (0, 1)
        )
        parts.append(f"about {_shown(about)} {words} (at most {_shown(most)})")
    return ", ".join(parts)


def _shown(hours: float) -> str:
    return f"{hours:.2g}" if hours < 9.95 else f"{hours:,.0f}"
