"""Case results as plain values, for the report."""

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
    """Results of one case of a run. A value that was not measured is None.

    Times are seconds, sizes bytes, rates samples per second. Intervals are 95 % intervals over launches or rounds.
    `docs/columns.md` defines each number.
    """

    case_id: str
    status: str
    """`ok`, `failed`, `hung`, `oom`, `diverged`, `skipped` or `unfinished`."""
    error: str = ""
    unproved: str = ""
    """Reason why the case's proof could not check what the case trained; empty if the proof could."""
    launches: int = 0
    """Number of successful launches."""
    baseline_case_id: str = ""
    step_time_s: Interval | None = None
    samples_per_s: Interval | None = None
    speedup: Interval | None = None
    speedup_rounds: int = 0
    """Number of rounds with a launch of the case and of its base case; 0 if the case has no base case."""
    efficiency: Interval | None = None
    exposed_comm_s: Interval | None = None
    evaluation_samples_per_s: Interval | None = None
    oversubscribed: bool = False
    noise_flag: str = ""
    """Words for the disturbances of the case's launches."""
    ci_reached: bool | None = None
    """True if the case's interval became as narrow as requested."""
    same_caps: tuple[str, ...] = ()
    """Other bucket caps (MiB or `default`) that give the same buckets. This case represents them."""
    flops_per_sample: float | None = None
    mfu: float | None = None
    """Model FLOPs utilisation, a fraction."""
    gradient_bytes: int | None = None
    held_bytes: tuple[int, int, int] | None = None
    """Bytes of parameters, gradients and optimizer state on the rank that stores the most."""
    peak_memory_bytes: int | None = None
    start: TypicalStart | None = None
    server_share_s: float | None = None
    traffic: LinkTraffic | None = None
    expected_node_bytes: float | None = None
    """Bytes per step over the busiest link, by the algorithm's formula."""
    traffic_ratio: float | None = None
    """Bytes sent divided by `expected_node_bytes`."""
    to_loss: Cost | None = None
    speedup_to_loss: Interval | None = None
    failed: RecoveryCost | None = None
    """Cost of the failures; None if no failure was planned."""
    loss_difference: tuple[float, int] | None = None
    """Largest relative difference of losses from those of uninterrupted training, and the number of steps."""


def case_summary(result: CaseResult) -> CaseSummary:
    """Return a case's results as plain values, without the records from which they were computed."""
    run = result.run
    return CaseSummary(
        case_id=run.case_id,
        status=run.status,
        error=run.error,
        unproved=run.unproved,
        launches=len(run.good),
        baseline_case_id=run.baseline_id,
        step_time_s=result.step_time,
        samples_per_s=result.samples_per_s,
        speedup=result.speedup,
        speedup_rounds=result.speedup_rounds or 0,
        efficiency=result.efficiency,
        exposed_comm_s=result.communication("exposed"),
        evaluation_samples_per_s=result.evaluation_samples_per_s,
        oversubscribed=run.oversubscribed,
        noise_flag=result.noise,
        ci_reached=result.ci_reached,
        same_caps=result.same_caps,
        flops_per_sample=result.flops_per_sample,
        mfu=result.mfu,
        gradient_bytes=result.gradient_bytes,
        held_bytes=result.held_bytes,
        peak_memory_bytes=result.peak_memory_bytes,
        start=result.start,
        server_share_s=result.server_share_s,
        traffic=result.traffic,
        expected_node_bytes=result.expected_node_bytes,
        traffic_ratio=result.traffic_ratio,
        to_loss=result.to_loss,
        speedup_to_loss=result.speedup_to_loss,
        failed=result.failed,
        loss_difference=result.loss_difference,
    )
