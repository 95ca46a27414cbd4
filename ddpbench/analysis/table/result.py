"""Results of a case as typed values, from which table columns are filled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ddpbench.analysis.checkpoints import CheckpointCost, checkpoint_costs
from ddpbench.analysis.judging import speedup_over
from ddpbench.analysis.network import busiest_link_bytes, bytes_to_aggregate
from ddpbench.analysis.read.asked import other_settings
from ddpbench.analysis.read.launches import CaseRun, noise_words
from ddpbench.analysis.read.overlap import Breakdown
from ddpbench.analysis.read.pace import Pacing, dilation_needed
from ddpbench.analysis.read.staleness import added
from ddpbench.analysis.read.traffic import LinkTraffic, mean_traffic
from ddpbench.analysis.recovery import RecoveryCost, loss_difference
from ddpbench.analysis.rounds import width_of
from ddpbench.analysis.startup import TypicalStart, typical_start
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import samples_rate, step_time
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.analysis.table.peaks import mfu, peak_of
from ddpbench.analysis.time_to_loss import Cost, against_base, cost_of
from ddpbench.spec import OWN_TYPES, Case, grouping
from ddpbench.spec.grouping import GroupKey
from ddpbench.strategies.traits import traits_of

_ITSELF = Interval(value=1.0)
"""Ratio of a base case to itself, which is 1 by definition and has no interval."""


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """Results of a case in its run. Missing values are None or empty. Times are seconds, sizes bytes."""

    run: CaseRun
    others: Mapping[str, CaseRun]
    """All cases of the run, by id."""
    computing: Mapping[GroupKey, Interval]
    """Compute times of the run's independent ranks, by the settings that decide them."""
    target: float
    """Requested half-width of the case's interval, a fraction."""
    machine: Mapping[str, Any]
    """`machine.json`."""

    @property
    def case(self) -> Case:
        """Return the case's settings."""
        return self.run.case

    @cached_property
    def timings(self) -> list[Timing]:
        """Return the timings of the case's successful launches."""
        return self.run.timings

    @property
    def is_base(self) -> bool:
        """Return whether the case is its own base case. Its speed-up is then 1 by definition."""
        return self.run.case_id == self.run.baseline_id

    @property
    def baseline(self) -> CaseRun | None:
        """Return the case that the speed-up is relative to; None if the run lacks it."""
        return self.others.get(self.run.baseline_id)

    @property
    def types(self) -> str:
        """Return the number types of the parameters, joined by `+`.

        For a user's class, these are the types that a launch recorded.
        """
        types = next((launch.types for launch in self.run.launches if launch.types), ())
        return "+".join(types) if self.case.dtype == OWN_TYPES and types else self.case.dtype

    @property
    def noise(self) -> str:
        """Describe disturbances of the launches, and settings in which ranks differed from the case."""
        return "; ".join(filter(None, [noise_words(self.run.good), other_settings(self.run)]))

    @cached_property
    def step_time(self) -> Interval | None:
        """Return the seconds per step of the median launch, with its interval."""
        return step_time(self.timings) if self.timings else None

    @cached_property
    def samples_per_s(self) -> Interval | None:
        """Return the samples per second of the median launch, with its interval."""
        return samples_rate(self.timings) if self.timings else None

    @cached_property
    def single_steps_s(self) -> tuple[float, float] | None:
        """Return the median and the 95th percentile (seconds) of the single steps of all launches."""
        known = (launch.step_ns for launch in self.run.good)
        steps_ns = [found for found in known if found is not None and len(found)]
        if not steps_ns:
            return None
        median, p95 = np.percentile(np.concatenate(steps_ns), [50, 95]) / 1e9
        return float(median), float(p95)

    @cached_property
    def _over_base(self) -> tuple[Interval, int | None] | None:
        if self.is_base:
            return (_ITSELF, None) if self.timings else None
        if self.baseline is None or not self.timings:
            return None
        return speedup_over(self.run, self.baseline)

    @property
    def speedup(self) -> Interval | None:
        """Return the case's samples per second divided by those of the base case, with its interval."""
        return self._over_base[0] if self._over_base is not None else None

    @property
    def speedup_rounds(self) -> int | None:
        """Return the number of rounds that have launches of both the case and its base case. None for a base case."""
        return self._over_base[1] if self._over_base is not None else None

    @property
    def efficiency(self) -> Interval | None:
        """Return the speed-up divided by the number of ranks, with its interval."""
        found, ranks = self.speedup, self.case.world_size
        if found is None or self.is_base:
            return found
        low, high = (None if end is None else end / ranks for end in (found.low, found.high))
        return Interval(value=found.value / ranks, low=low, high=high)

    @cached_property
    def ci_reached(self) -> bool | None:
        """Return whether the interval is as narrow as requested; None if nothing was timed."""
        if not self.timings:
            return None
        other = None if self.is_base or self.baseline is None else self.baseline.timings
        width = width_of(self.timings, other)
        return width is not None and width <= self.target

    def part(self, name: str) -> Interval | None:
        """Return the time of a part of the instrumented step, with its interval. `name` is a name in `PARTS`."""
        return self.run.parts.interval(name) if self.run.parts is not None else None

    @property
    def transfers(self) -> Breakdown | None:
        """Return the breakdown of the instrumented step if it has transfers, otherwise None."""
        parts = self.run.parts
        return parts if parts is not None and parts.has_transfers else None

    def communication(self, name: str) -> Interval | None:
        """Return the seconds per step of one of the totals `comm`, `exposed`, `overlapped`, `wait` or `queue`."""
        return self.transfers.interval(name) if self.transfers is not None else None

    @property
    def compute_time(self) -> Interval | None:
        """Return the seconds per step that independent ranks need for forward and backward.

        For a case that exchanges nothing, or whose model another framework than torch computes, it is the case's own
        time.
        """
        traits = traits_of(self.case)
        if not traits.exchanges or traits.engine != "torch":
            return _own_compute(self.run)
        return self.computing.get(grouping.deciding("compute", self.case))

    @property
    def gradient_bytes(self) -> int | None:
        """Return the bytes of one replica's gradients."""
        known = (launch.gradient_bytes for launch in self.run.good)
        return next((size for size in known if size is not None), None)

    @property
    def parameters(self) -> int | None:
        """Return the number of trained parameters of the model."""
        return next((launch.parameters for launch in self.run.good if launch.parameters), None)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Return the highest peak memory of any rank in any launch."""
        peaks = [launch.peak_memory_bytes for launch in self.run.good]
        return max((peak for peak in peaks if peak is not None), default=None)

    @property
    def held_bytes(self) -> tuple[int, int, int] | None:
        """Return the bytes of parameters, gradients and optimizer state on the rank that stored the most in total."""
        held = [launch.held_bytes for launch in self.run.good if launch.held_bytes is not None]
        return max(held, key=sum, default=None)

    @property
    def flops_per_sample(self) -> float | None:
        """Return the FLOPs of forward and backward per sample; None for a replay, which does not compute the model."""
        proof = self.run.proof
        return proof.flops_per_sample if proof and self.case.compute == "real" else None

    @property
    def mfu(self) -> float | None:
        """Return the share of the GPUs' peak rate that the case reaches; None if unknown."""
        if self.samples_per_s is None:
            return None
        peak = peak_of(self.case, self.machine)
        return mfu(self.case, self.flops_per_sample, self.samples_per_s.value, peak)

    @property
    def params_equal(self) -> bool | None:
        """Return whether the ranks' parameters were equal at the end of every launch.

        None if no launch compared them.
        """
        known = [launch.params_equal for launch in self.run.launches if launch.params_equal is not None]
        return all(known) if known else None

    @cached_property
    def evaluations(self) -> list[Timing]:
        """Return the timings of evaluation steps, one for each launch that has them."""
        return [launch.evaluation for launch in self.run.good if launch.evaluation is not None]

    @property
    def evaluation_step_time(self) -> Interval | None:
        """Return the seconds per evaluation step of the median launch, with its interval."""
        return step_time(self.evaluations) if self.evaluations else None

    @property
    def evaluation_samples_per_s(self) -> Interval | None:
        """Return the samples per second of evaluation in the median launch, with its interval."""
        return samples_rate(self.evaluations) if self.evaluations else None

    @property
    def same_caps(self) -> tuple[str, ...]:
        """Return the other requested bucket caps (MiB or `default`) that give the same buckets."""
        caps = (cap for cap in self.run.planned.stands_for if cap is not None)
        return tuple(cap if isinstance(cap, str) else f"{cap:g}" for cap in caps)

    @cached_property
    def checkpoints(self) -> Mapping[str, CheckpointCost]:
        """Return the cost of checkpoints by each method, `plain` first."""
        launches = [launch.checkpoints for launch in self.run.good]
        costs = checkpoint_costs(self.run.case_id, launches, self.timings)
        return {cost.method: cost for cost in costs}

    @cached_property
    def start(self) -> TypicalStart | None:
        """Return the median start-up time of a launch and the median of each part of it, in seconds."""
        return typical_start([launch.start_up for launch in self.run.good if launch.start_up is not None])

    @property
    def server_share_s(self) -> float | None:
        """Return a launch's share of its fork server's start-up, in seconds, as a mean over launches."""
        if self.start is None:
            return None
        return sum(launch.server_s for launch in self.run.good) / len(self.run.good)

    @cached_property
    def recovery(self) -> RecoveryCost | None:
        """Return the costs of snapshots and failures; None if the case trained without snapshots."""
        return self.run.recovery

    @property
    def failed(self) -> RecoveryCost | None:
        """Return `recovery` if the case has a planned failure, otherwise None."""
        return self.recovery if self.case.recovery != "uninterrupted" else None

    @cached_property
    def loss_difference(self) -> tuple[float, int] | None:
        """Return the largest relative loss difference from uninterrupted training, and the fewest steps compared.

        Launches are compared within a round. None without uninterrupted training.
        """
        if self.case.recovery in ("off", "uninterrupted", "leave"):  # with fewer ranks, losses differ rightly
            return None
        wanted = self.others.get(replace(self.case, recovery="uninterrupted").case_id)
        curves = {
            each.round: each.recovered.losses for each in (wanted.good if wanted else ()) if each.recovered
        }
        pairs = [
            found
            for each in self.run.good
            if each.recovered is not None and each.round in curves
            if (found := loss_difference(each.recovered.losses, curves[each.round])) is not None
        ]
        if not pairs:
            return None
        return max(difference for difference, _ in pairs), min(steps for _, steps in pairs)

    @cached_property
    def traffic(self) -> LinkTraffic | None:
        """Return the bytes per step that emulated links carried, as a mean over launches."""
        return mean_traffic(launch.traffic for launch in self.run.good if launch.traffic is not None)

    @property
    def expected_node_bytes(self) -> float | None:
        """Return the bytes per step that the busiest emulated link should carry by the algorithm's formula."""
        size = bytes_to_aggregate(self.run) if self.traffic is not None else None
        return None if size is None else busiest_link_bytes(self.case, self.case.known_algorithm, size)

    @property
    def traffic_ratio(self) -> float | None:
        """Return the bytes that the busiest link sent divided by `expected_node_bytes`."""
        expected = self.expected_node_bytes
        return self.traffic.sent / expected if self.traffic is not None and expected else None

    @property
    def paced(self) -> Sequence[Pacing] | None:
        """Return the pacing of each launch of a replay; None if no launch recorded it."""
        return [launch.pace for launch in self.run.good if launch.pace is not None] or None

    @property
    def dilation_needed(self) -> float | None:
        """Return the smallest dilation that hides the host's own work."""
        return dilation_needed(self.case.dilation, self.paced) if self.paced else None

    @cached_property
    def to_loss(self) -> Cost | None:
        """Return the time, steps and samples needed to reach the requested loss."""
        return cost_of(self.run)

    @property
    def speedup_to_loss(self) -> Interval | None:
        """Return the base case's time to the loss divided by this case's time, with its interval."""
        if self.to_loss is None or self.to_loss.time_s is None:
            return None
        if self.is_base:
            return _ITSELF
        comparison = against_base(self.run, self.baseline) if self.baseline is not None else None
        return comparison.rate_ratio() if comparison is not None else None

    @cached_property
    def staleness(self) -> tuple[int, ...] | None:
        """Return how many gradients were 0, 1, 2, ... updates old when a server applied them.

        None if the case has no such server.
        """
        return added(launch.staleness for launch in self.run.good) or None


def case_results(
    cases: Sequence[CaseRun], targets: Mapping[str, float], machine: Mapping[str, Any]
) -> list[CaseResult]:
    """Return the results of cases that were already read, in their order.

    Args:
        cases: all cases of a run.
        targets: the requested half-width of each case's interval, by case id, a fraction.
        machine: the contents of `machine.json`.
    """
    others, computing = {run.case_id: run for run in cases}, _compute_times(cases)
    return [
        CaseResult(run=run, others=others, computing=computing, target=targets[run.case_id], machine=machine)
        for run in cases
    ]


def _compute_times(cases: Sequence[CaseRun]) -> dict[GroupKey, Interval]:
    """Return the compute times of independent ranks by settings; `single` counts as one such rank."""
    found: dict[GroupKey, Interval] = {}
    for role, run in itertools.product(
        ("base", "bound"), cases
    ):  # the bound last, so that it replaces the base
        own = _own_compute(run) if traits_of(run.case).role == role else None
        if own is not None:
            found[grouping.deciding("compute", run.case)] = own
    return found


def _own_compute(run: CaseRun) -> Interval | None:
    return run.parts.interval("forward", "backward") if run.parts is not None else None
