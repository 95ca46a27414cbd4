"""A run's summary written by hand, with numbers typical of two cores; without records."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd

from ddpbench.analysis.case_summary import CaseSummary
from ddpbench.analysis.finding import Finding
from ddpbench.analysis.results import ByPart, Compared, LaunchResult, Proved, StepParts, StrategyPhase
from ddpbench.analysis.sentences import Sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.summary import (
    CaseFailure,
    Conclusions,
    Counts,
    Course,
    RunFacts,
    RunSummary,
    StepResults,
    TrainingResults,
)
from ddpbench.analysis.table.columns import COLUMNS
from ddpbench.report import page
from ddpbench.report.parts import Section
from ddpbench.report.rows import rows_of
from ddpbench.spec import Case

LOG_ATTACK = "</td><script>alert('log')</script> \x1b[31mRuntimeError\x1b[0m: rank 1 \u202eleft"
HOST_ATTACK = "node<img src=x onerror=alert(1)>"
NAN = float("nan")
PLANNED: dict[str, Case] = {}
"""Every case that a row was made from."""


def case_row(case: Case, *, rate: float | None, base: float = 812.0, **given: Any) -> dict[str, Any]:
    """Return a row of `COLUMNS`: the case's fields, and numbers that follow from a throughput."""
    PLANNED[case.case_id] = case
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    contents = case.to_json()
    row |= {name: contents[name] for name in COLUMNS if name in contents}
    row |= {"status": "ok", "error": "", "launches": 5, "launches_failed": 0, "steps": 400}
    row |= {"baseline_case_id": case.baseline().case_id, "oversubscribed": False, "noise_flag": ""}
    row["ci_reached"] = True
    if rate is not None:
        half = 0.018
        speedup = rate / base
        step = case.global_batch / rate
        for name, value in (
            ("step_time{}_s", step),
            ("samples_per_s{}", rate),
            ("speedup{}", speedup),
            ("efficiency{}", speedup / case.world_size),
        ):
            row[name.format("")] = value
            row[name.format("_ci_low")] = value * (1 - half)
            row[name.format("_ci_high")] = value * (1 + half)
        row |= {"step_time_median_s": step * 0.99, "step_time_p95_s": step * 1.1}
        row["exposed_comm_s"] = 0.18 * step if case.strategy in ("ddp", "master") else None
    return row | given


def values_of(frame: pd.DataFrame) -> tuple[CaseSummary, ...]:
    """Return the rows of such a table in the form that a summary has them, next to the table."""

    def number(value: Any) -> float | None:
        return None if pd.isna(value) else float(value)

    def text(value: Any) -> str:
        return "" if pd.isna(value) else str(value)

    def interval(row: Mapping[Any, Any], pattern: str) -> Interval | None:
        value, low, high = (number(row[pattern.format(end)]) for end in ("", "_ci_low", "_ci_high"))
        return None if value is None else Interval(value, low, high)

    return tuple(
        CaseSummary(
            case_id=row["case_id"],
            status=row["status"],
            error=text(row["error"]),
            launches=row["launches"],
            baseline_case_id=row["baseline_case_id"],
            oversubscribed=row["oversubscribed"],
            noise_flag=text(row["noise_flag"]),
            ci_reached=None if pd.isna(row["ci_reached"]) else row["ci_reached"],
            step_time_s=interval(row, "step_time{}_s"),
            samples_per_s=interval(row, "samples_per_s{}"),
            speedup=interval(row, "speedup{}"),
            efficiency=interval(row, "efficiency{}"),
            exposed_comm_s=interval(row, "exposed_comm{}_s"),
        )
        for row in frame.to_dict("records")
    )


READ_FROM_ROWS = (
    *("case_id", "status", "error", "launches", "baseline_case_id", "oversubscribed", "noise_flag"),
    *("ci_reached", "step_time_s", "samples_per_s", "speedup", "efficiency", "exposed_comm_s"),
)
"""Columns that `values_of` fills for a case."""


def with_cases(summary: RunSummary, cases: pd.DataFrame, **changes: Any) -> RunSummary:
    """Return the summary with another table of cases."""
    return changed(summary, cases=cases, by_case=values_of(cases), **changes)


def launches_of(row: dict[str, Any], rounds: int = 5) -> tuple[LaunchResult, ...]:
    """Return the case's launches, scattered around its mean the same way each time."""
    rate = row["samples_per_s"]
    if rate is None:
        return ()
    noise = random.Random(row["case_id"])
    result = []
    for number in range(rounds):
        factor = 1 + noise.uniform(-0.03, 0.03)
        result.append(
            LaunchResult(
                case_id=row["case_id"],
                round=number,
                status="ok",
                step_time_s=row["step_time_s"] / factor,
                samples_per_s=rate * factor,
                wall_s=3.1,
                measured_s=2.3,
                server_s=0.4,
                steal_fraction=0.002,
                foreign_fraction=0.01,
                steady=True,
                noise_flag="",
                session="",
            )
        )
    return tuple(result)


def parts_of(row: dict[str, Any]) -> StepParts:
    """Return parts of the case's step that add up."""
    step = row["step_time_s"] * 1.013
    exchanges = row["strategy"] in ("ddp", "master")
    comm = 0.18 * step if exchanges else 0.0
    wait = 0.05 * step if exchanges else 0.0
    parts = {
        "forward": 0.22 * step,
        "optimizer": 0.06 * step,
        "other_compute": 0.11 * step if row["strategy"] == "data_parallel" else 0.0,
        "exposed_comm": comm,
        "exposed_wait": wait,
        "data": 0.02 * step,
        "not_attributed": 0.012 * step,
    }
    parts["backward"] = step - sum(parts.values())
    return StepParts(
        case_id=row["case_id"],
        parts=ByPart(**{name: Interval(value=value) for name, value in parts.items()}),
        overlapped_comm=Interval(0.14 * step if row["strategy"] == "ddp" else 0.0),
        step_time_s=step,
        launches=5,
        instrumentation_overhead=0.013,
    )


def ddp(world_size: int, cap: Any = "default", **changes: Any) -> Case:
    return _case(strategy="ddp", world_size=world_size, bucket_cap_mb=cap, **changes)


def _case(**changes: Any) -> Case:
    values: dict[str, Any] = {"experiment": "bucket_and_ranks", "workload": "gpt:nano", "local_batch": 8}
    values |= changes
    world = values.setdefault("world_size", 1)
    return Case(**{**values, "global_batch": values["local_batch"] * world, "ranks_per_node": world})


def handmade_summary(**changes: Any) -> RunSummary:
    """Return a summary of eight strategies and sizes, five rounds; one case failed, one skipped, three
    oversubscribed.
    """
    single = _case(strategy="single", backend="")
    rows = [case_row(single, rate=812.0)]
    rates = {1: 806.0, 2: 1534.0, 4: 2710.0, 8: 2680.0}
    for world, rate in rates.items():
        case = _case(strategy="independent", backend="", world_size=world)
        rows.append(case_row(case, rate=rate, oversubscribed=world == 8))
    rows.append(case_row(_case(strategy="data_parallel", backend="", world_size=2), rate=1105.0))
    ddp_rates = {1: 781.0, 2: 1370.0, 4: 2191.0, 8: 1690.0}
    for world, rate in ddp_rates.items():
        rows.append(case_row(ddp(world), rate=rate, oversubscribed=world == 8))
    rows += [
        case_row(ddp(world, cap), rate=ddp_rates[world] * factor)
        for cap, factor in ((1.0, 0.88), (5.0, 0.985), (25.0, 1.004))
        for world in (2, 4)
    ]
    rows.append(case_row(_case(strategy="master", world_size=2), rate=1020.0))
    failed = _case(strategy="master", world_size=4)
    reason = f"rank 1 ended with code 1 in warm-up; see {failed.case_id}/launch-00/rank-00001.attempt-0.log"
    rows.append(case_row(failed, rate=None, status="failed", error=reason, launches=0, launches_failed=5))
    rows.append(
        case_row(_case(strategy="master", world_size=8), rate=1510.0, oversubscribed=True, noise_flag="steal")
    )
    skipped = _case(strategy="fsdp", world_size=2)
    why = "fsdp needs torch 2.6 or newer; this is 2.5"
    rows.append(case_row(skipped, rate=None, status="skipped", error=why, launches=0))
    measured = [row for row in rows if row["samples_per_s"]]
    dp = next(row for row in rows if row["strategy"] == "data_parallel")
    spans = ("scatter", "replicate", "forward", "gather", "backward", "reduce", "optimizer")
    shares = (0.02, 0.09, 0.24, 0.03, 0.47, 0.08, 0.06)
    summary = RunSummary(
        about=RunFacts(
            name="bucket_and_ranks",
            question="Does the best bucket size move when ranks are added?",
            machine={
                "schema_version": 1,
                "identity": {
                    "cpu": "Intel(R) Xeon(R) CPU @ 2.60GHz",
                    "cores": [0, 1, 2, 3],
                    "cpu_quota": None,
                    "gpus": [],
                    "kernel": "6.1.0",
                    "torch": "2.13.0+cpu",
                    "experiment_digest": "b3f0c1d2e4a59687",
                },
                "context": {
                    "host": HOST_ATTACK,
                    "started_utc": "2026-03-04T09:12:44+00:00",
                    "command": "ddpbench sweep bucket_and_ranks.toml",
                    "ddpbench_version": "0.1.0",
                    "git_commit": "4be1a90",
                    "load_1min": 0.12,
                },
            },
            experiment_toml=EXPERIMENT,
            run_path="reports/bucket_and_ranks-20260304T091244",
        ),
        course=Course(
            counts=Counts(planned=95, succeeded=90, failed=5, skipped_cases=1, cases=len(rows), rounds=5),
            failures=(
                CaseFailure(
                    case_id=failed.case_id,
                    label=failed.label,
                    round=0,
                    status="failed",
                    phase="warm-up",
                    reason=reason,
                    last_log_line=LOG_ATTACK,
                ),
                CaseFailure(
                    case_id=skipped.case_id,
                    label=skipped.label,
                    round=None,
                    status="skipped",
                    phase="",
                    reason=why,
                    last_log_line="",
                ),
            ),
            stop_reason="target reached",
            measured_share=0.74,
            wall_s=341.0,
        ),
        conclusions=Conclusions(
            findings=(
                Finding(
                    kind="strategies",
                    text=Sentence(
                        "DDP is 34.3 % [31.0, 37.7] faster than master at 2 ranks, gpt:nano (5 launches each)"
                    ),
                    evidence="strategies",
                    verdict="faster",
                ),
                Finding(
                    kind="buckets",
                    text=Sentence(
                        "25 MiB and default buckets are equivalent within 2 % at 4 ranks: 0.4 % [-0.6, 1.4]"
                    ),
                    evidence="buckets",
                    verdict="equivalent",
                ),
                Finding(
                    kind="buckets",
                    text=Sentence(
                        "5 MiB against 25 MiB buckets at 4 ranks: no significant difference; this sweep cannot "
                        "rule out up to 3.1 %"
                    ),
                    evidence="buckets",
                    verdict="unresolved",
                ),
                Finding(
                    kind="buckets",
                    text=Sentence(
                        "1 MiB buckets are 12.4 % [10.9, 14.0] slower than 25 MiB at 4 ranks (5 launches each)"
                    ),
                    evidence="buckets",
                    verdict="slower",
                ),
                Finding(
                    kind="speed-up",
                    text=Sentence("The efficiency of DDP at 4 ranks is 0.675 [0.663, 0.687]"),
                    evidence="scaling",
                    verdict="note",
                ),
            ),
            validity=(
                "4 cases ran with more ranks than cores (oversubscribed): their numbers are kept out of headlines.",
                "1 case has launches disturbed by stolen processor time: master, 8 ranks.",
            ),
        ),
        cases=pd.DataFrame(rows, columns=list(COLUMNS)),
        planned=PLANNED,
        steps=StepResults(
            launches=tuple(launch for row in rows for launch in launches_of(row)),
            breakdown=tuple(map(parts_of, measured)),
            phases=tuple(
                StrategyPhase(
                    case_id=dp["case_id"],
                    span=span,
                    mean_s=share * dp["step_time_s"],
                    order=order,
                    median_s=share * dp["step_time_s"],
                )
                for order, (span, share) in enumerate(zip(spans, shares, strict=True))
            ),
        ),
        training=TrainingResults(
            proofs=tuple(
                Proved(
                    case_id=row["case_id"],
                    compared=compared,
                    dtype="float64",
                    error=3.1e-16 * (1 + index),
                    tolerance=1e-12,
                    passed=True,
                    note="",
                )
                for row in rows
                if row["strategy"] in ("ddp", "master", "data_parallel")
                for index, compared in enumerate(("gradients, same shards", "gradients, whole batch"))
            ),
        ),
    )
    cases = changes.pop("cases", summary.cases)
    return with_cases(summary, cases, **changes)


def fields_of(summary: RunSummary) -> dict[str, Any]:
    """Return the values of a summary and of its parts, by the names of their fields."""
    own = {each.name: getattr(summary, each.name) for each in dataclasses.fields(summary)}
    parts = [own.pop(name) for name in list(own) if dataclasses.is_dataclass(own[name])]
    return own | {each.name: getattr(part, each.name) for part in parts for each in dataclasses.fields(part)}


def changed(summary: RunSummary, **changes: Any) -> RunSummary:
    """Return a summary with other values, by the names of fields in any of its parts."""
    assert changes.keys() <= fields_of(summary).keys()
    parts: dict[str, Any] = {
        part.name: dataclasses.replace(old, **new)
        for part in dataclasses.fields(summary)
        for old in [cast(Any, getattr(summary, part.name))]
        if hasattr(old, "__dataclass_fields__")
        if (new := {name: value for name, value in changes.items() if hasattr(old, name)})
    }
    own = {each.name: changes[each.name] for each in dataclasses.fields(summary) if each.name in changes}
    return dataclasses.replace(summary, **own, **parts)


def bucket_comparisons(world_size: int = 4, verdicts: Sequence[str] = ()) -> tuple[Compared, ...]:
    """Return the caps at one number of ranks, each compared with the fastest of the others."""
    rows = [
        ("default", 1.004, 0.994, 1.014, "as good"),
        (1.0, 1.14, 1.12, 1.16, "slower"),
        (5.0, 1.019, 0.99, 1.031, "cannot tell"),
        (25.0, 0.996, 0.985, 1.007, "as good"),
    ]
    return tuple(
        Compared(
            topic="buckets",
            case_id=ddp(world_size, cap).case_id,
            best_case_id=ddp(world_size, "default" if cap == 25.0 else 25.0).case_id,
            ratio=Interval(value=ratio, low=low, high=high),
            verdict=verdicts[index] if verdicts else verdict,
        )
        for index, (cap, ratio, low, high, verdict) in enumerate(rows)
    )


def sections_of(summary: RunSummary) -> list[Section]:
    """Return the sections that a run's page has between its summary and its closing tables, in their order."""
    rows = rows_of(summary)
    return page.sections_of(summary, rows)


EXPERIMENT = """\
name = "bucket_and_ranks"
question = "Does the best bucket size move when ranks are added?"

[base]
workload = "gpt:nano"
local_batch = 8

[axes]
world_size = [1, 2, 4, 8]
bucket_cap_mb = ["default", 1, 5, 25]

[budget]
rounds_min = 5
rounds_max = 20
measured_s = 2.0
"""
