"""Results of each case as plain values, which the report reads."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.read.traffic import LinkTraffic
from ddpbench.analysis.recovery import RecoveryCost
from ddpbench.analysis.startup import TypicalStart
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.table.result import CaseResult
from ddpbench.analysis.time_to_loss import Cost


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseSummary:
    """A case of a run. None is what was not measured; times are seconds, sizes bytes, rates samples per second.

    Intervals are of 95 % over launches or rounds. `docs/columns.md` has what each number is.
    """

    case_id: str
    status: str
    """`ok`, `failed`, `hung`, `oom`, `diverged`, `skipped` or `unfinished`."""
    error: str = ""
    unproved: str = ""
    """Why nothing shows what it trained, where its proof could not compare that."""
    launches: int = 0
    """Number of launches that ended well."""
    baseline_case_id: str = ""
    step_time_s: Interval | None = None
    samples_per_s: Interval | None = None
    speedup: Interval | None = None
    speedup_rounds: int = 0
    """Number of rounds with a launch of the case and of its base case; 0 without a base case."""
    efficiency: Interval | None = None
    exposed_comm_s: Interval | None = None
    evaluation_samples_per_s: Interval | None = None
    oversubscribed: bool = False
    noise_flag: str = ""
    """Disturbances of its launches, in words."""
    ci_reached: bool | None = None
    """True if its interval became as narrow as was asked for."""
    same_caps: tuple[str, ...] = ()
    """Other bucket caps, MiB or `default`, that make the same buckets, which it stands for."""
    flops_per_sample: float | None = None
    mfu: float | None = None
    """A fraction."""
    gradient_bytes: int | None = None
    held_bytes: tuple[int, int, int] | None = None
    """Parameters, gradients and optimizer state of the rank that holds most."""
    peak_memory_bytes: int | None = None
    start: TypicalStart | None = None
    server_share_s: float | None = None
    traffic: LinkTraffic | None = None
    expected_node_bytes: float | None = None
    """Bytes a step of the busiest link, by the algorithm's formula."""
    traffic_ratio: float | None = None
    """Bytes sent over `expected_node_bytes`."""
    to_loss: Cost | None = None
    speedup_to_loss: Interval | None = None
    failed: RecoveryCost | None = None
    """Costs of failures; None where none was planned."""
    loss_difference: tuple[float, int] | None = None
    """Largest relative difference of a step's loss from the uninterrupted training's, and over how many steps."""


def case_summary(found: CaseResult) -> CaseSummary:
    """Return a case's results as values, without the records that they were made from."""
    run = found.run
    return CaseSummary(
        case_id=run.case_id,
        status=run.status,
        error=run.error,
        unproved=run.unproved,
        launches=len(run.good),
        baseline_case_id=run.baseline_id,
        step_time_s=found.step_time,
        samples_per_s=found.samples_per_s,
        speedup=found.speedup,
        speedup_rounds=found.speedup_rounds or 0,
        efficiency=found.efficiency,
        exposed_comm_s=found.communication("exposed"),
        evaluation_samples_per_s=found.evaluation_samples_per_s,
        oversubscribed=run.oversubscribed,
        noise_flag=found.noise,
        ci_reached=found.ci_reached,
        same_caps=found.same_caps,
        flops_per_sample=found.flops_per_sample,
        mfu=found.mfu,
        gradient_bytes=found.gradient_bytes,
        held_bytes=found.held_bytes,
        peak_memory_bytes=found.peak_memory_bytes,
        start=found.start,
        server_share_s=found.server_share_s,
        traffic=found.traffic,
        expected_node_bytes=found.expected_node_bytes,
        traffic_ratio=found.traffic_ratio,
        to_loss=found.to_loss,
        speedup_to_loss=found.speedup_to_loss,
        failed=found.failed,
        loss_difference=found.loss_difference,
    )
