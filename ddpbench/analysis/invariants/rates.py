"""Check derived values: rates, speed-ups, intervals, and shares of a machine's resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ddpbench.analysis.bound import is_bounded
from ddpbench.analysis.invariants.checked import ROUNDING, Bounded, CheckedCase
from ddpbench.analysis.read.pace import host_share
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import MARGIN
from ddpbench.analysis.statistics.stats import compare
from ddpbench.analysis.table.peaks import TF32_OVER_FLOAT32, computes_in
from ddpbench.analysis.table.result import CaseResult
from ddpbench.strategies.traits import traits_of

FAR = 0.25
"""A value that exceeds its bound by more than this fraction is wrong, even if its interval includes the bound."""
EDGES = 0.05
"""Relative tolerance of processor time, which is read slightly outside of the timed region at a block's edges."""
_INTERVALS: Mapping[str, Callable[[CaseResult], Interval | None]] = {
    "step_time_s": lambda case: case.step_time,
    "samples_per_s": lambda case: case.samples_per_s,
    "speedup": lambda case: case.speedup,
    "efficiency": lambda case: case.efficiency,
    "time_to_loss_s": lambda case: case.to_loss.time_s if case.to_loss else None,
    "speedup_to_loss": lambda case: case.speedup_to_loss,
    "evaluation_step_time_s": lambda case: case.evaluation_step_time,
    "evaluation_samples_per_s": lambda case: case.evaluation_samples_per_s,
    "snapshot_plain_s": lambda case: case.checkpoints["plain"].cost if "plain" in case.checkpoints else None,
    "snapshot_dcp_s": lambda case: case.checkpoints["dcp"].cost if "dcp" in case.checkpoints else None,
}
"""Functions that return a case's intervals, by column."""


def intervals_hold_points(case: CheckedCase) -> Iterable[Bounded]:
    """Yield each of the case's point estimates, which must be inside its interval."""
    for name, read in _INTERVALS.items():
        found = read(case.result)
        if found is not None and found.low is not None and found.high is not None:
            yield Bounded(
                what=f"its {name}",
                seen=found.value,
                least=found.low - ROUNDING * abs(found.low),
                most=found.high + ROUNDING * abs(found.high),
            )


def columns_agree(case: CheckedCase) -> Iterable[Bounded]:
    """Yield samples per second times step time, which must equal the global batch."""
    step, rate = case.result.step_time, case.result.samples_per_s
    if step is not None and rate is not None:
        yield _equal("samples_per_s times step_time_s", rate.value * step.value, case.run.case.global_batch)


def _equal(what: str, seen: float, wanted: float) -> Bounded:
    slack = ROUNDING * abs(wanted)
    return Bounded(what=what, seen=seen, least=wanted - slack, most=wanted + slack)


def within_the_machine(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the shares of the cores' time and of a GPU's peak operations that the case used, which are at most 1.

    In full precision, cuDNN's TF32 convolutions may exceed the float32 peak.
    """
    mfu = case.result.mfu
    if case.result.paced:
        share = host_share(case.result.paced)
        yield Bounded(what="the share of its cores' time", seen=share, least=0, most=1 + EDGES)
    if mfu is not None:
        most = TF32_OVER_FLOAT32 if computes_in(case.run.case) in ("float32", "") else 1
        yield Bounded(what="its MFU", seen=mfu, least=0, most=most)


def held_in_memory(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the bytes of a rank's parameters, gradients and optimizer state, which are at most its peak memory.

    Replays are left out: their parameters are never touched, and so are not in memory.
    """
    job = case.run.case
    for launch in case.run.good:
        if launch.held_bytes is None or launch.peak_memory_bytes is None or job.compute != "real":
            continue
        yield Bounded(
            what="what a rank holds of parameters, gradients and optimizer state",
            seen=sum(launch.held_bytes) / job.shrink,
            most=launch.peak_memory_bytes,
            unit="bytes",
            round=launch.round,
        )


def at_most_the_ranks(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the speed-up, which is at most the number of ranks, of cases whose model torch computes.

    The rule is broken if the entire interval, or far above it the value, exceeds the bound.
    """
    if traits_of(case.run.case).engine != "torch":
        return
    ranks = case.run.case.world_size
    speedup = case.result.speedup
    if speedup is not None:
        if speedup.low is not None:
            what = "the lower end of its speed-up's interval"
            yield Bounded(what=what, seen=speedup.low, most=ranks * (1 + MARGIN))
        yield Bounded(what="its speed-up", seen=speedup.value, most=ranks * (1 + FAR))


def caches_cannot_explain(case: CheckedCase, number: Bounded) -> bool:
    """Return whether a speed-up above the number of ranks must be wrong.

    Under strong scaling, a small excess is possible, because a rank's smaller share of the batch may fit into a
    cache.
    """
    job = case.run.case
    return job.scaling != "strong" or number.seen > job.world_size * (1 + FAR)


def under_the_bound(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the step time divided by that of independent ranks, which is at least 1.

    The rule is broken if the entire interval, paired by round, is below 1, or if the value is far below.
    """
    bound = case.bound
    if bound is None or not is_bounded(case.run.case):
        return
    comparison = compare(case.run.timings, bound.timings)
    if comparison is None:
        return
    ratio = comparison.time_ratio()
    if comparison.paired and ratio.high is not None:
        what = "the upper end of the interval of its step over that of independent ranks"
        yield Bounded(what=what, seen=ratio.high, least=1 / (1 + MARGIN))
    yield Bounded(what="its step over that of independent ranks", seen=ratio.value, least=1 / (1 + FAR))
