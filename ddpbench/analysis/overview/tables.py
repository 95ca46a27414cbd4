"""Cases as tables: their launches, parts of a step, spans, proofs, inputs and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from ddpbench.analysis.checkpoints import INTERVALS, checkpoint_costs
from ddpbench.analysis.inputs import input_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.overlap import PARTS, STANDARD_SPANS
from ddpbench.analysis.statistics.stats import Interval

_LAUNCHES = {
    "case_id": "string",
    "round": "Int64",
    "status": "string",
    "step_time_s": "float64",
    "samples_per_s": "float64",
    "wall_s": "float64",
    "measured_s": "float64",
    "server_s": "float64",
    "steal_fraction": "float64",
    "foreign_fraction": "float64",
    "steady": "boolean",
    "noise_flag": "string",
    "session": "string",
}
_BREAKDOWN = (
    *("case_id", *PARTS, "step_time_s", "overlapped_comm", "launches", "instrumentation_overhead"),
    *(f"{name}_ci_{end}" for name in (*PARTS, "overlapped_comm") for end in ("low", "high")),
)
_PHASES = ("case_id", "span", "mean_s", "order", "median_s")
_PROOFS = ("case_id", "compared", "dtype", "error", "tolerance", "passed", "note")
_RATIO = ("ratio", "ratio_ci_low", "ratio_ci_high")
_INPUTS = ("group", "case_id", "data", "loader_workers", "waited_s", "waited_share", *_RATIO, "verdict")
_COST = ("cost_s", "cost_ci_low_s", "cost_ci_high_s", "first_s", "write_s", "bytes", "writers")
_SHARES = (*(f"share_{steps}" for steps in INTERVALS), "steps_for_1_percent")
_MEANS = ("cost_mean_s", "step_time_mean_s")
_CHECKPOINTS = ("case_id", "method", *_COST, "checkpoints", "launches", "step_time_s", *_SHARES, *_MEANS)


def launches_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """Return every launch, in the order of cases and rounds."""
    rows = [
        (
            launch.case_id,
            launch.round,
            launch.status,
            launch.timing.step_s if launch.timing is not None else None,
            1 / launch.timing.sample_s if launch.timing is not None else None,
            launch.wall_s,
            launch.measured_s,
            launch.server_s,
            launch.noise.steal_fraction,
            launch.noise.foreign_fraction,
            launch.steady,
            "; ".join(launch.flags),
            launch.session,
        )
        for case in cases
        for launch in case.launches
    ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_LAUNCHES)
    return pd.DataFrame(
        {
            name: pd.Series(list(values), dtype=dtype)
            for (name, dtype), values in zip(_LAUNCHES.items(), columns, strict=True)
        }
    )


def breakdown_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """Return the typical step of each instrumented case by its parts, with intervals."""
    rows = [
        (
            case.case_id,
            *(parts.parts[name] for name in PARTS),
            parts.step_s,
            parts.overlapped_s,
            parts.launches,
            math.expm1(fmean(logs)) if (logs := case.instrumented_over_timed) else None,
            *(end for name in (*PARTS, "overlapped") for end in _ends(parts.interval(name))),
        )
        for case in cases
        if (parts := case.parts) is not None
    ]
    return pd.DataFrame(rows, columns=list(_BREAKDOWN))


def _ends(interval: Interval) -> tuple[float | None, float | None]:
    return interval.low, interval.high


def phases_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """Return the spans of the cases that have others than every strategy has: data_parallel's, above all."""
    rows = [
        (case.case_id, span, case.parts.mean_spans[span], order, median_s)
        for case in cases
        if case.parts is not None and not STANDARD_SPANS.issuperset(case.parts.spans)
        for order, (span, median_s) in enumerate(case.parts.spans.items())
    ]
    return pd.DataFrame(rows, columns=list(_PHASES))


def proofs_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """Return what each case's proof compared, and how far apart it was."""
    rows = [
        (case.case_id, p.compared, p.dtype, p.error, p.tolerance, p.passed, p.note)
        for case in cases
        if case.proof is not None
        for p in case.proof.proofs
    ]
    return pd.DataFrame(rows, columns=list(_PROOFS))


def inputs_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """Return the cases whose data come from memory or a loader, by groups of like cases."""
    rows = [
        (
            number,
            member.run.case_id,
            member.run.case.data,
            member.run.case.loader_workers,
            member.waited_s,
            member.waited_share,
            *((ratio.value, ratio.low, ratio.high) if (ratio := member.ratio) is not None else (None,) * 3),
            member.verdict,
        )
        for number, group in enumerate(input_groups(cases))
        for member in group.members
    ]
    return pd.DataFrame(rows, columns=list(_INPUTS))


def checkpoints_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """Return what each case's checkpoints cost, by method, and their share at some intervals."""
    rows = [
        (
            case.case_id,
            cost.method,
            cost.cost.value,
            cost.cost.low,
            cost.cost.high,
            cost.first_s,
            cost.write_s,
            cost.bytes,
            cost.writers,
            cost.checkpoints,
            cost.launches,
            cost.step_s,
            *(cost.share(steps) for steps in INTERVALS),
            cost.steps_for_small_share,
            cost.mean_s,
            cost.step_mean_s,
        )
        for case in cases
        if case.timings
        for cost in checkpoint_costs([launch.checkpoints for launch in case.good], case.timings)
    ]
    return pd.DataFrame(rows, columns=list(_CHECKPOINTS))
