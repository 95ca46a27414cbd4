"""One row of the table: what a case's plan, launches, records and base case give for each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ddpbench.analysis.checkpoints import checkpoint_costs
from ddpbench.analysis.judging import speedup_over
from ddpbench.analysis.network import busiest_link_bytes, bytes_to_aggregate
from ddpbench.analysis.read.asked import other_settings
from ddpbench.analysis.read.launches import CaseRun, noise_words
from ddpbench.analysis.read.pace import dilation_needed, host_share, lateness_p95_s
from ddpbench.analysis.read.staleness import added, mean_of
from ddpbench.analysis.read.traffic import mean_traffic
from ddpbench.analysis.rounds import width_of
from ddpbench.analysis.startup import typical_start
from ddpbench.analysis.statistics.stats import Interval, samples_rate, step_time
from ddpbench.analysis.table.columns import COLUMNS, TABLE
from ddpbench.analysis.table.peaks import mfu, peak_of
from ddpbench.analysis.time_to_loss import against_base, cost_of
from ddpbench.spec import OWN_TYPES, Case, grouping
from ddpbench.strategies.traits import traits_of

_HELD = ("held_parameter_bytes", "held_gradient_bytes", "held_optimizer_bytes")
_OF_THE_CASE = [field.name for field in fields(Case) if field.name in COLUMNS]
_COMMUNICATION = {
    "comm_time{}_s": "comm",
    "exposed_comm{}_s": "exposed",
    "wait_time{}_s": "wait",
    "queue_time{}_s": "queue",
}
"""Columns, and the totals of a `Breakdown` that they hold."""


def bucket_text(cap: float | str | None) -> str:
    """Return a bucket cap as the table has it: `default`, or a number without needless decimals."""
    if cap is None:
        return ""
    return cap if isinstance(cap, str) else f"{cap:.15g}"


def compute_times(cases: Sequence[CaseRun]) -> dict[tuple[Any, ...], Interval]:
    """Return the computation of independent ranks by what decides it; at one rank `single` is that too."""
    found: dict[tuple[Any, ...], Interval] = {}
    for role in ("base", "bound"):  # the bound last, so that it wins
        for run in cases:
            own = _own_compute(run) if traits_of(run.case).role == role else None
            if own is not None:
                found[grouping.deciding("compute", run.case)] = own
    return found


def row_of(
    run: CaseRun,
    baseline: CaseRun | None,
    computing: Mapping[Any, Interval],
    target: float,
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a case's values by column; a column that it has none for may be missing.

    Args:
        run: the case.
        baseline: its base case; None where the run has none.
        computing: the run's `compute_times`.
        target: the half-width that its interval was to have.
        machine: machine.json.
    """
    row = _settings(run) | _overlap(run) | _computation(run, computing)
    if not run.timings:
        return row | _recovery(run)
    row |= _times(run) | _single_steps(run) | _speedup(run, baseline) | _reached(run, baseline, target)
    row |= _model(run) | _memory(run) | _evaluation(run) | _start_up(run)
    row["mfu"] = mfu(run.case, row["flops_per_sample"], row["samples_per_s"], peak_of(run.case, machine))
    row |= _checkpoints(run) | _traffic(run) | _pace(run)
    return row | _staleness(run) | _to_loss(run, baseline) | _recovery(run)


def _settings(run: CaseRun) -> dict[str, Any]:
    """Return what the plan says, and what each column computes by itself."""
    case = run.case
    row: dict[str, Any] = {name: getattr(case, name) for name in _OF_THE_CASE}
    row |= {column.name: column.value(run) for column in TABLE if column.value is not None}
    return row | {
        "case_id": run.case_id,
        "bucket_cap_mb": bucket_text(case.bucket_cap_mb),
        "params_equal": _params_equal(run),
        # what torch counts of a replay says nothing of the model, for it sleeps
        "flops_per_sample": run.proof.flops_per_sample if run.proof and case.compute == "real" else None,
        "noise_flag": "; ".join(filter(None, [noise_words(run.good), other_settings(run)])),
        **_types(run),
    }


def _types(run: CaseRun) -> dict[str, Any]:
    """Return the types of a class's own parameters, `bfloat16+float32`, where a launch has recorded them."""
    types = next((launch.types for launch in run.launches if launch.types), ())
    return {"dtype": "+".join(types)} if run.case.dtype == OWN_TYPES and types else {}


def _computation(run: CaseRun, computing: Mapping[Any, Interval]) -> dict[str, Any]:
    """Return the time of computation: its own where ranks exchange nothing, else that of such ranks.

    Of another framework than theirs its own too.
    """
    case = run.case
    traits = traits_of(case)
    compute = (
        _own_compute(run)
        if not traits.exchanges or traits.engine != "torch"
        else computing.get(grouping.deciding("compute", case))
    )
    return _with_ends("compute_time{}_s", compute) if compute is not None else {}


def _times(run: CaseRun) -> dict[str, Any]:
    timings = run.timings
    return {
        "steps": sum(timing.steps for timing in timings),
        **_with_ends("step_time{}_s", step_time(timings)),
        **_with_ends("samples_per_s{}", samples_rate(timings)),
    }


def _single_steps(run: CaseRun) -> dict[str, Any]:
    """Return percentiles of the steps of all launches."""
    steps_ns = [launch.step_ns for launch in run.good if launch.step_ns is not None and len(launch.step_ns)]
    if not steps_ns:
        return {}
    median, p95 = np.percentile(np.concatenate(steps_ns), [50, 95]) / 1e9
    return {"step_time_median_s": float(median), "step_time_p95_s": float(p95)}


def _speedup(run: CaseRun, baseline: CaseRun | None) -> dict[str, Any]:
    """Return speed-up and efficiency over the base case; of a base case they are 1 by definition, without interval."""
    if run.case_id == run.baseline_id:
        return {"speedup": 1.0, "efficiency": 1.0}
    if baseline is None or (found := speedup_over(run, baseline)) is None:
        return {}
    speedup, rounds = found
    return {
        "speedup_rounds": rounds,
        **_with_ends("speedup{}", speedup),
        **_with_ends("efficiency{}", speedup, divisor=run.case.world_size),
    }


def _reached(run: CaseRun, baseline: CaseRun | None, target: float) -> dict[str, Any]:
    """Return whether the interval became as narrow as it was to be."""
    other = None if run.case_id == run.baseline_id or baseline is None else baseline.timings
    width = width_of(run.timings, other)
    return {"ci_reached": width is not None and width <= target}


def _model(run: CaseRun) -> dict[str, Any]:
    """Return what ranks said of the model: its size, its gradients', and the buckets that they went into."""
    good = run.good
    row = {
        "parameters": next((x.parameters for x in good if x.parameters), None),
        "gradient_bytes": next((x.gradient_bytes for x in good if x.gradient_bytes is not None), None),
    }
    sizes = run.bucket_bytes
    return row if sizes is None else row | {"actual_bucket_bytes": ";".join(map(str, sizes))}


def _memory(run: CaseRun) -> dict[str, Any]:
    """Return the highest peak of any rank, and what the rank held that held most."""
    peaks = [launch.peak_memory_bytes for launch in run.good if launch.peak_memory_bytes is not None]
    held = [launch.held_bytes for launch in run.good if launch.held_bytes is not None]
    row: dict[str, Any] = {"peak_memory_bytes": max(peaks, default=None)}
    return row | dict(zip(_HELD, max(held, key=sum), strict=True)) if held else row


def _start_up(run: CaseRun) -> dict[str, Any]:
    typical = typical_start([launch.start_up for launch in run.good if launch.start_up is not None])
    if typical is None:
        return {}
    total, parts = typical
    share_s = sum(launch.server_s for launch in run.good) / len(run.good)
    return (
        _with_ends("startup{}_s", total)
        | {f"startup_{name}": value for name, value in parts.items()}
        | {"server_share_s": share_s}
    )


def _recovery(run: CaseRun) -> dict[str, Any]:
    cost = run.recovery
    if cost is None:
        return {}
    intervals = {
        "recovery{}_s": cost.total,
        "restored{}_s": cost.restored,
        "recovery_at_pace{}_s": cost.regained,
        "recovery_snapshot{}_s": cost.snapshot,
        "joining{}_s": cost.joined,
        **{f"{name}_samples_per_s{{}}": rate for name, rate in cost.rates.items()},
    }
    row: dict[str, Any] = {
        "recovery_snapshot_bytes": cost.snapshot_bytes,
        "samples_lost": cost.lost,
        "samples_repeated": cost.repeated,
        "snapshots_unreadable": "; ".join(cost.unreadable),
        **{f"recovery_{name}": value for name, value in cost.parts.items()},
        "recovery_building_s": cost.built_s,
        "restored_mean_s": cost.restored_mean_s,
        "recovery_snapshot_mean_s": cost.snapshot_mean_s,
    }
    if run.case.recovery != "uninterrupted":
        row |= {"failures": cost.failures, "recoveries": cost.recoveries}
        row |= {"recomputed_steps": cost.recomputed_steps, "recoveries_at_pace": cost.regained_launches}
    for pattern, interval in intervals.items():
        row |= _with_ends(pattern, interval) if interval is not None else {}
    return row


def _evaluation(run: CaseRun) -> dict[str, Any]:
    evaluations = [launch.evaluation for launch in run.good if launch.evaluation is not None]
    if not evaluations:
        return {}
    return _with_ends("evaluation_step_time{}_s", step_time(evaluations)) | _with_ends(
        "evaluation_samples_per_s{}", samples_rate(evaluations)
    )


def _checkpoints(run: CaseRun) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for cost in checkpoint_costs(run.case_id, [launch.checkpoints for launch in run.good], run.timings):
        row |= _with_ends(f"snapshot_{cost.method}{{}}_s", cost.cost)
        row.setdefault("snapshot_bytes", cost.bytes)  # plain's, which comes first
    return row


def _to_loss(run: CaseRun, baseline: CaseRun | None) -> dict[str, Any]:
    """Return what it takes to reach the loss that was asked for; of a base case the speed-up is 1 by definition."""
    cost = cost_of(run)
    if cost is None:
        return {}
    row: dict[str, Any] = {"target_loss": cost.target, "lowest_loss": cost.lowest}
    if cost.time_s is None:
        return row
    row |= {"samples_to_loss": cost.samples, "steps_to_loss": cost.steps}
    row |= _with_ends("time_to_loss{}_s", cost.time_s)
    if run.case_id == run.baseline_id:
        row["speedup_to_loss"] = 1.0
    elif baseline is not None and (comparison := against_base(run, baseline)) is not None:
        row |= _with_ends("speedup_to_loss{}", comparison.rate_ratio())
    return row


def _traffic(run: CaseRun) -> dict[str, Any]:
    """Return what emulated links carried a step, and what the algorithm's formula says."""
    traffic = mean_traffic(launch.traffic for launch in run.good if launch.traffic is not None)
    case = run.case
    if traffic is None:
        return {}
    size = bytes_to_aggregate(run)
    expected = None if size is None else busiest_link_bytes(case, case.known_algorithm, size)
    return {
        "node_sent_bytes": traffic.sent,
        "node_received_bytes": traffic.received,
        "expected_node_bytes": expected,
        "traffic_ratio": traffic.sent / expected if expected else None,
    }


def _pace(run: CaseRun) -> dict[str, Any]:
    """Return how a replay kept time, and the dilation that would hide the host's own work."""
    paced = [launch.pace for launch in run.good if launch.pace is not None]
    if not paced:
        return {}
    return {
        "lateness_p95_s": lateness_p95_s(paced),
        "host_share": host_share(paced),
        "dilation_needed": dilation_needed(run.case.dilation, paced),
    }


def _staleness(run: CaseRun) -> dict[str, Any]:
    """Return how old gradients were that a server applied, in updates, over all launches."""
    counts = added(launch.staleness for launch in run.good)
    return {"staleness_mean": mean_of(counts), "staleness_max": len(counts) - 1} if counts else {}


def _with_ends(pattern: str, interval: Interval, *, divisor: float = 1) -> dict[str, Any]:
    """Return a value's three columns; `{}` in the pattern is where `_ci_low` and `_ci_high` stand."""
    return {
        pattern.format(""): interval.value / divisor,
        pattern.format("_ci_low"): None if interval.low is None else interval.low / divisor,
        pattern.format("_ci_high"): None if interval.high is None else interval.high / divisor,
    }


def _params_equal(run: CaseRun) -> bool | None:
    """Return whether the ranks' parameters ended equal in every launch; None where nothing promises or tells it."""
    known = [launch.params_equal for launch in run.launches if launch.params_equal is not None]
    return all(known) if known else None


def _overlap(run: CaseRun) -> dict[str, Any]:
    parts = run.parts
    if parts is None:
        return {}
    row: dict[str, Any] = {}
    for name in ("data", "forward", "backward", "optimizer"):
        row |= _with_ends(f"{name}_time{{}}_s", parts.interval(name))
    if parts.has_transfers:
        for column, name in _COMMUNICATION.items():
            row |= _with_ends(column, parts.interval(name))
        overlap = parts.overlap_interval()
        if overlap is not None:
            row |= _with_ends("overlap_fraction{}", overlap)
    return row


def _own_compute(run: CaseRun) -> Interval | None:
    """Forward and backward, seconds a step."""
    return run.parts.interval("forward", "backward") if run.parts is not None else None
