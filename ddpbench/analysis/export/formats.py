"""Files with a run's numbers that other programs read: pytest-benchmark's JSON, OpenMetrics, CSV, Parquet."""

from __future__ import annotations

import importlib.util
import json
import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddpbench.analysis.decided import load
from ddpbench.analysis.export.benchmark import extra_info
from ddpbench.analysis.export.steps import load_steps, load_transfers
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.estimands import MEDIAN
from ddpbench.analysis.table.frame import csv_of
from ddpbench.errors import RequestError
from ddpbench.escaping import escape_openmetrics
from ddpbench.naming import Namer, ranks_of
from ddpbench.records import RunDir
from ddpbench.records.machine import read_machine
from ddpbench.records.plan import read_plan
from ddpbench.version import VERSION

TABLES: Mapping[str, Callable[[RunDir], pd.DataFrame]] = {
    "cases": load,
    "steps": load_steps,
    "transfers": load_transfers,
}


def _csv(run: RunDir, table: str) -> bytes:
    return csv_of(TABLES[table](run)).encode()


def _parquet(run: RunDir, table: str) -> bytes:
    if importlib.util.find_spec("pyarrow") is None:
        raise RequestError("--format parquet needs pyarrow: pip install pyarrow, or use --format csv")
    content: bytes = TABLES[table](run).to_parquet(None, index=False)
    return content


def _only_cases(name: str, table: str) -> None:
    if table != "cases":
        raise RequestError(
            f"--format {name} holds only the cases of a run: use csv or parquet for its {table}"
        )


def _pytest_benchmark(run: RunDir, table: str) -> bytes:
    _only_cases("pytest-benchmark", table)
    plan, machine = read_plan(run), read_machine(run)
    cases = [case for case in read_cases(run, plan) if case.timings]
    names = Namer(case.case for case in cases)
    rows = {str(row["case_id"]): row for row in load(run).to_dict("records")}
    context, identity = machine.get("context", {}), machine.get("identity", {})
    commit = str(context.get("git_commit") or "")
    document = {
        "machine_info": {
            "node": context.get("host"),
            "processor": identity.get("cpu"),
            "machine": platform.machine(),
            "python_version": identity.get("python"),
            "torch": identity.get("torch"),
            "cpu": {"brand_raw": identity.get("cpu"), "count": len(identity.get("cores") or [])},
        },
        "commit_info": {
            "id": commit.removesuffix("+") or None,
            "dirty": commit.endswith("+"),
            "project": plan.experiment,
            "branch": None,
            "time": None,
            "author_time": None,
        },
        "benchmarks": [
            _benchmark(
                case,
                names.key(case.case),
                plan.experiment,
                extra_info(case, rows[case.case_id], identity),
            )
            for case in cases
        ],
        "datetime": context.get("started_utc"),
        "version": f"ddpbench {VERSION}",
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _benchmark(case: CaseRun, name: str, experiment: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    params = {
        "strategy": case.case.strategy,
        "world_size": case.case.world_size,
        "bucket_cap_mb": case.case.bucket_cap_mb,
        "backend": case.case.backend,
    }
    return {
        "group": f"{case.case.workload} at {ranks_of(case.case)}",
        "name": name,
        "fullname": f"{experiment}::{name}",
        "params": params,
        "param": case.case_id,
        "extra_info": dict(extra),
        "options": {
            "disable_gc": False,
            "timer": "ddpbench",
            "min_rounds": len(case.timings),
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": statistics_of([timing.step_s for timing in case.timings]),
    }


def statistics_of(values: Sequence[float]) -> dict[str, Any]:
    """Return statistics of a benchmark's rounds (`values`, seconds) under pytest-benchmark's names."""
    data = sorted(values)
    mean = math.fsum(data) / len(data)
    deviation = float(np.std(data, ddof=1)) if len(data) > 1 else 0.0
    q1, median, q3 = (float(value) for value in np.quantile(data, [0.25, 0.5, 0.75]))
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    outside = sum(not low <= value <= high for value in data)
    far = sum(abs(value - mean) > deviation for value in data)
    return {
        "min": data[0],
        "max": data[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": len(data),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": far,
        "outliers": f"{far};{outside}",
        "ld15iqr": min((value for value in data if value >= low), default=data[0]),
        "hd15iqr": max((value for value in data if value <= high), default=data[-1]),
        "ops": 1 / mean if mean else 0.0,
        "total": math.fsum(data),
        "data": list(values),
        "iterations": 1,
    }


_METRICS = (
    ("step_time_s", "ddpbench_step_time_seconds", "seconds", f"Time of a training step, {MEDIAN}"),
    ("samples_per_s", "ddpbench_samples_per_second", "", f"Throughput of the whole job, {MEDIAN}"),
    ("speedup", "ddpbench_speedup_ratio", "ratio", "Throughput over that of the base case"),
    ("efficiency", "ddpbench_efficiency_ratio", "ratio", "Speed-up over the number of ranks"),
    (
        "exposed_comm_s",
        "ddpbench_exposed_comm_seconds",
        "seconds",
        "Communication of a step that nothing hides",
    ),
    ("wait_time_s", "ddpbench_wait_seconds", "seconds", "Waiting of a step for other ranks"),
    ("peak_memory_bytes", "ddpbench_peak_memory_bytes", "bytes", "Peak memory of the rank that has most"),
)
"""Column, metric, unit and help text of each metric."""
_LABELS = (
    "case_id",
    "experiment",
    "workload",
    "strategy",
    "backend",
    "device",
    "world_size",
    "bucket_cap_mb",
)


def _openmetrics(run: RunDir, table: str) -> bytes:
    """Write gauges; the label `end` is `value`, or `low` or `high` for an end of the interval."""
    _only_cases("openmetrics", table)
    frame = load(run)
    frame = frame[frame["status"] == "ok"]
    lines: list[str] = []
    for column, metric, unit, words in _METRICS:
        lines.append(f"# TYPE {metric} gauge")
        if unit:
            lines.append(f"# UNIT {metric} {unit}")
        lines.append(f"# HELP {metric} {words}.")
        names = {
            "value": column,
            **{end: f"{_stem(column)}_ci_{end}{_unit(column)}" for end in ("low", "high")},
        }
        for _, row in frame.iterrows():
            for end, name in names.items():
                if name in row.index and not pd.isna(row[name]):
                    lines.append(f"{metric}{{{_pairs(row, end)}}} {float(row[name]):.9g}")
    return ("\n".join([*lines, "# EOF"]) + "\n").encode()


def _stem(column: str) -> str:
    return re.sub(r"_s$", "", column) if column != "samples_per_s" else column


def _unit(column: str) -> str:
    return "_s" if column.endswith("_s") and column != "samples_per_s" else ""


def _pairs(row: pd.Series[Any], end: str) -> str:
    labels = {name: "" if pd.isna(row[name]) else str(row[name]) for name in _LABELS} | {"end": end}
    return ",".join(f'{name}="{escape_openmetrics(value)}"' for name, value in labels.items() if value)


FORMATS: Mapping[str, Callable[[RunDir, str], bytes]] = {
    "csv": _csv,
    "openmetrics": _openmetrics,
    "parquet": _parquet,
    "pytest-benchmark": _pytest_benchmark,
}


def exported(run: RunDir, kind: str, table: str = "cases") -> bytes:
    """Return one of a run's `TABLES` as a file of format `kind`.

    Raises:
        RequestError: the format cannot contain that table, or needs a package that is not installed.
        KeyError: the format is unknown.
        IdentityError: `run` is not a run directory, or has another schema.
    """
    return FORMATS[kind](run, table)
