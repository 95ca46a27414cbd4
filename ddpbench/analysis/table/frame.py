"""The table of a run: one row per case, exactly `COLUMNS`; its CSV file, written and read back."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddpbench.analysis.checkpoints import snapshot_costs
from ddpbench.analysis.descents import against_base, cost_of
from ddpbench.analysis.network import bytes_to_aggregate
from ddpbench.analysis.read.launches import CaseRun, noise_words, read_cases
from ddpbench.analysis.read.pace import dilation_needed, host_share, lateness_p95_s
from ddpbench.analysis.read.staleness import added, mean_of
from ddpbench.analysis.read.traffic import mean_traffic
from ddpbench.analysis.rounds import width_of
from ddpbench.analysis.statistics.stats import Comparison, Interval, Timing, compare, samples_rate, step_time
from ddpbench.analysis.table.columns import COLUMNS, DTYPES, TABLE
from ddpbench.analysis.table.peaks import mfu, peak_of
from ddpbench.errors import OutputError
from ddpbench.formulas import busiest_node_bytes
from ddpbench.records import RunDir, explain_os_error, write_atomically
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.spec import Case, grouping
from ddpbench.strategies.traits import traits_of

_HELD = ("held_parameter_bytes", "held_gradient_bytes", "held_optimizer_bytes")
_OF_THE_CASE = [field.name for field in fields(Case) if field.name in COLUMNS]

_ALWAYS = COLUMNS[: COLUMNS.index("dilation") + 1]
"""What every table has."""


def load(run: RunDir | Path | str) -> pd.DataFrame:
    """Return the table of a run directory, regenerated from its records: one row per case, in the plan's order.

    Raises:
        IdentityError: it is not a run directory, or one of another schema.
    """
    found = run if isinstance(run, RunDir) else RunDir(Path(run))
    plan = read_plan(found)
    machine = found.read_json(found.machine) if found.machine.exists() else {}
    return case_table(plan, read_cases(found, plan), machine)


def case_table(plan: StoredPlan, cases: Sequence[CaseRun], machine: Mapping[str, Any]) -> pd.DataFrame:
    """Return the table of cases already read; `machine` is machine.json."""
    by_id = {case.case_id: case for case in cases}
    computing = _compute_times(cases)
    rows = [_row(case, by_id, computing, plan.budget.target_half_width, machine) for case in cases]
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in COLUMNS}
    for column in TABLE:
        if column.kind == "text":
            columns[column.name] = [value if value != "" else None for value in columns[column.name]]
    return pd.DataFrame({name: pd.Series(columns[name], dtype=DTYPES[name]) for name in COLUMNS})


def bucket_text(cap: float | str | None) -> str:
    """Return a bucket cap as the table has it: `default`, or a number without needless decimals."""
    if cap is None:
        return ""
    return cap if isinstance(cap, str) else f"{cap:.15g}"


def _row(
    run: CaseRun,
    by_id: Mapping[str, CaseRun],
    computing: Mapping[Any, Interval],
    target: float,
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    case, good, timings = run.case, run.good, run.timings
    baseline_id = run.baseline_id
    row: dict[str, Any] = {name: getattr(case, name) for name in _OF_THE_CASE}
    row |= {column.name: column.value(run) for column in TABLE if column.value is not None}
    row |= {
        "case_id": run.case_id,
        "bucket_cap_mb": bucket_text(case.bucket_cap_mb),
        "params_equal": _params_equal(run),
        # what torch counts of a replay says nothing of the model, for it sleeps
        "flops_per_sample": run.proof.flops_per_sample if run.proof and case.compute == "real" else None,
        "noise_flag": noise_words(good),
    }
    row |= _overlap(run)
    compute = (
        _own_compute(run)
        if not traits_of(case).exchanges
        else computing.get(grouping.deciding("compute", case))
    )
    if compute is not None:
        _put(row, "compute_time{}_s", compute)
    if not timings:
        return row
    baseline = by_id.get(baseline_id)
    row["steps"] = sum(timing.steps for timing in timings)
    _put(row, "step_time{}_s", step_time(timings))
    _put(row, "samples_per_s{}", samples_rate(timings))
    steps_ns = [launch.step_ns for launch in good if launch.step_ns is not None and len(launch.step_ns)]
    if steps_ns:
        median, p95 = np.percentile(np.concatenate(steps_ns), [50, 95]) / 1e9
        row |= {"step_time_median_s": float(median), "step_time_p95_s": float(p95)}
    if run.case_id == baseline_id:
        row |= {"speedup": 1.0, "efficiency": 1.0}  # by definition: no interval
    elif baseline is not None and (comparison := _within_rounds(timings, baseline)) is not None:
        speedup = comparison.rate_ratio()
        _put(row, "speedup{}", speedup)
        _put(row, "efficiency{}", speedup, divisor=case.world_size)
    width = width_of(timings, None if run.case_id == baseline_id or baseline is None else baseline.timings)
    row["ci_reached"] = width is not None and width <= target
    last = next((launch for launch in reversed(good) if launch.bucket_bytes is not None), None)
    if last is not None and last.bucket_bytes is not None:
        row["actual_bucket_bytes"] = ";".join(map(str, last.bucket_bytes))
    row["mfu"] = mfu(case, row["flops_per_sample"], row["samples_per_s"], peak_of(case, machine))
    row["parameters"] = next((x.parameters for x in good if x.parameters), None)
    row["gradient_bytes"] = next((x.gradient_bytes for x in good if x.gradient_bytes is not None), None)
    peaks = [launch.peak_memory_bytes for launch in good if launch.peak_memory_bytes is not None]
    row["peak_memory_bytes"] = max(peaks, default=None)
    held = [launch.held_bytes for launch in good if launch.held_bytes is not None]
    if held:
        row |= dict(zip(_HELD, max(held, key=sum), strict=True))
    evaluations = [launch.evaluation for launch in good if launch.evaluation is not None]
    if evaluations:
        _put(row, "evaluation_step_time{}_s", step_time(evaluations))
        _put(row, "evaluation_samples_per_s{}", samples_rate(evaluations))
    for cost in snapshot_costs([launch.snapshots for launch in good], row["step_time_s"]):
        _put(row, f"snapshot_{cost.method}{{}}_s", cost.cost)
        row.setdefault("snapshot_bytes", cost.bytes)  # plain's, which comes first
    row |= _traffic(run, row["gradient_bytes"]) | _pace(run) | _staleness(run)
    return row | _to_loss(run, baseline)


def _to_loss(run: CaseRun, baseline: CaseRun | None) -> dict[str, Any]:
    """Return what it takes to reach the loss that was asked for; of a base case the speed-up is 1 by definition."""
    cost = cost_of(run)
    if cost is None:
        return {}
    row: dict[str, Any] = {"target_loss": cost.target, "lowest_loss": cost.lowest}
    if cost.time_s is None:
        return row
    row |= {"samples_to_loss": cost.samples, "steps_to_loss": cost.steps}
    _put(row, "time_to_loss{}_s", cost.time_s)
    if run.case_id == run.baseline_id:
        row["speedup_to_loss"] = 1.0
    elif baseline is not None and (comparison := against_base(run, baseline)) is not None:
        _put(row, "speedup_to_loss{}", comparison.rate_ratio())
    return row


def _traffic(run: CaseRun, gradient_bytes: int | None) -> dict[str, Any]:
    """Return what emulated links carried a step, and what the algorithm's formula says."""
    traffic = mean_traffic(launch.traffic for launch in run.good if launch.traffic is not None)
    case = run.case
    if traffic is None:
        return {}
    expected = None
    if gradient_bytes:
        size = bytes_to_aggregate(case, gradient_bytes)
        if size is not None:
            expected = busiest_node_bytes(case.algorithm, case.nodes, case.ranks_per_node, size)
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


def _within_rounds(timings: Sequence[Timing], baseline: CaseRun) -> Comparison | None:
    """A speed-up is a ratio within rounds: None where the two share none, whatever each has by itself."""
    comparison = compare(timings, baseline.timings)
    return comparison if comparison is not None and comparison.paired and comparison.rounds else None


def _put(row: dict[str, Any], pattern: str, interval: Interval, *, divisor: float = 1) -> None:
    """Sets a value's three columns; `{}` in the pattern is where `_ci_low` and `_ci_high` stand."""
    row[pattern.format("")] = interval.value / divisor
    row[pattern.format("_ci_low")] = None if interval.low is None else interval.low / divisor
    row[pattern.format("_ci_high")] = None if interval.high is None else interval.high / divisor


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
        _put(row, f"{name}_time{{}}_s", parts.interval(name))
    if parts.has_transfers:
        for column, name in _COMMUNICATION.items():
            _put(row, column, parts.interval(name))
        overlap = parts.overlap_interval()
        if overlap is not None:
            _put(row, "overlap_fraction{}", overlap)
    return row


_COMMUNICATION = {
    "comm_time{}_s": "comm",
    "exposed_comm{}_s": "exposed",
    "wait_time{}_s": "wait",
    "queue_time{}_s": "queue",
}
"""Columns, and the totals of a `Breakdown` that they hold."""


def _own_compute(run: CaseRun) -> Interval | None:
    """Forward and backward, seconds a step."""
    return run.parts.interval("forward", "backward") if run.parts is not None else None


def _compute_times(cases: Sequence[CaseRun]) -> dict[tuple[Any, ...], Interval]:
    """Return the computation of independent ranks by what decides it; at one rank `single` is that too."""
    found: dict[tuple[Any, ...], Interval] = {}
    for role in ("base", "bound"):  # the bound last, so that it wins
        for run in cases:
            own = _own_compute(run) if traits_of(run.case).role == role else None
            if own is not None:
                found[grouping.deciding("compute", run.case)] = own
    return found


def write_csv(frame: pd.DataFrame, run: RunDir) -> Path:
    """Writes `cases.csv`, and `cases.parquet` where pyarrow is installed; returns the former's path.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        write_atomically(run.table, frame.to_csv(index=False, lineterminator="\n"))
        if importlib.util.find_spec("pyarrow") is not None:
            beside = run.table.with_name(".cases.parquet.new")
            frame.to_parquet(beside, index=False)
            beside.replace(run.table.with_suffix(".parquet"))
    except OSError as error:
        raise OutputError(f"{run.table} cannot be written: {explain_os_error(error)}") from None
    return run.table


def read_csv(path: Path) -> pd.DataFrame:
    """Return a table back from its file, with the dtypes it was written with; columns of a later version are kept.

    Columns that its version did not have yet are empty.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a table.
    """
    text = path.read_text(encoding="utf-8")
    names = text.partition("\n")[0].split(",")
    missing = [name for name in _ALWAYS if name not in names]
    if missing:
        raise ValueError(f"{path} is not a table of cases: the columns {', '.join(missing[:5])} are missing")
    frame = pd.read_csv(
        io.StringIO(text),
        dtype={name: dtype for name, dtype in DTYPES.items() if name in names},
        keep_default_na=False,
        na_values=[""],
    )
    for name in COLUMNS:
        if name not in names:
            frame[name] = pd.Series([None] * len(frame), dtype=DTYPES[name])
    return frame
