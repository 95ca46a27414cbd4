"""A run directory made into a `RunSummary`: everything the report draws and the command line prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from ddpbench.analysis.checkpoints import INTERVALS, snapshot_costs
from ddpbench.analysis.descents import curves_table, goals_table
from ddpbench.analysis.findings.compared import MOST_FINDINGS, comparisons_table, decided_first, findings
from ddpbench.analysis.findings.inputs import input_findings
from ddpbench.analysis.findings.lead import lead_findings
from ddpbench.analysis.findings.loss import loss_findings, loss_sentences
from ddpbench.analysis.findings.pairing import pairing_sentences
from ddpbench.analysis.findings.precision import precision_findings
from ddpbench.analysis.findings.settings import setting_findings
from ddpbench.analysis.findings.virtual import virtual_sentences
from ddpbench.analysis.inputs import input_groups
from ddpbench.analysis.invariants import check_cases
from ddpbench.analysis.names import Names
from ddpbench.analysis.network import network_table
from ddpbench.analysis.read.fabrics import fabric_sentences, fabrics_of
from ddpbench.analysis.read.faults import fault_sentences
from ddpbench.analysis.read.launches import CaseRun, resume_command
from ddpbench.analysis.read.overlap import PARTS, STANDARD_SPANS
from ddpbench.analysis.read.positions import position_spread
from ddpbench.analysis.read.reading import read_cases_of
from ddpbench.analysis.read.staleness import staleness_sentences
from ddpbench.analysis.scaling.curves import CurveLaws, law_findings, laws_of
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, Interval, step_time
from ddpbench.analysis.steps.communication import transfers_table
from ddpbench.analysis.steps.one_step import one_step
from ddpbench.analysis.steps.waterfall import waterfall_table
from ddpbench.analysis.summary import Counts, Failure, Finding, RunSummary
from ddpbench.analysis.table.frame import case_table
from ddpbench.errors import IdentityError
from ddpbench.helper_process import Beside
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.spec import labels

MOST_ASKED = 3
"""Sentences on losses, links, options, inputs and precision, for sweeps that ask about them."""
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
_PHASES = ("case_id", "span", "mean_s", "order")
_PROOFS = ("case_id", "compared", "dtype", "error", "tolerance", "passed", "note")
_RATIO = ("ratio", "ratio_ci_low", "ratio_ci_high")
_END_WORDS = {
    "budget": " before the sweep's budget was exhausted",
    "rounds_max": " in as many rounds as were allowed",
    "interrupted": " before the sweep was interrupted",
    "failed": " before the sweep failed",
}
_INPUTS = ("group", "case_id", "data", "loader_workers", "waited_s", "waited_share", *_RATIO, "verdict")
_COST = ("cost_s", "cost_ci_low_s", "cost_ci_high_s", "first_s", "write_s", "bytes", "writers")
_SHARES = (*(f"share_{steps}" for steps in INTERVALS), "steps_for_1_percent")
_SNAPSHOTS = ("case_id", "method", *_COST, "snapshots", "launches", "step_time_s", *_SHARES)


def summarize(run: RunDir, beside: Beside | None = None) -> RunSummary:
    """Return all that a run directory shows. Unfinished launches are left out. `beside` shares the reading.

    Raises:
        IdentityError: it is not a run directory, or one of another schema.
    """
    plan = read_plan(run)
    cases = read_cases_of(run, plan, beside)
    machine = run.read_json(run.machine)
    table = case_table(plan, cases, machine)
    laws = laws_of(cases, machine)
    merged = run.read_json(run.merged) if run.merged.exists() else {}
    fabrics = fabrics_of(run)
    checks = check_cases(cases, table, fabrics)
    step, step_absent = one_step(run, cases)
    sessions = _sessions(run)
    wall_s = sum(float(session.get("wall_s") or 0) for session in sessions)
    measured_s = sum(float(session.get("measured_s") or 0) for session in sessions)
    stop_reason = str(sessions[-1].get("stop_reason") or "") if sessions else "interrupted"
    counts = _counts(plan, cases, merged=bool(merged))
    return RunSummary(
        name=plan.experiment,
        question=plan.question,
        machine=machine,
        experiment_toml=_text(run),
        run_path=str(run.path),
        counts=counts,
        cases=table,
        planned={run.case_id: run.case for run in cases},
        launches=_launches(cases),
        breakdown=_breakdown(cases),
        phases=_phases(cases),
        proofs=_proofs(cases),
        findings=_findings(cases, laws),
        validity=(
            *checks.told,
            *_merge_sentences(merged),
            *_validity(plan, cases, table, stop_reason=stop_reason, path=str(run.path)),
            *virtual_sentences(cases, table),
            *fabric_sentences(fabrics),
        ),
        failures=tuple(_failures(cases)),
        stop_reason=stop_reason,
        measured_share=measured_s / wall_s if wall_s > 0 else None,
        wall_s=wall_s,
        comparisons=comparisons_table(cases),
        inputs=_inputs(cases),
        snapshots=_snapshots(cases),
        waterfall=waterfall_table(cases),
        transfers=transfers_table(cases),
        network=network_table(cases),
        curves=curves_table(cases),
        goals=goals_table(cases),
        fabrics=fabrics,
        checks=checks,
        one_step=step,
        one_step_absent=step_absent,
        laws=laws,
        position_spread=position_spread(plan.order, counts.rounds),
        merged_from=tuple(str(origin["path"]) for origin in merged.get("sources", ())),
    )


def _findings(cases: Sequence[CaseRun], laws: Sequence[CurveLaws]) -> tuple[Finding, ...]:
    """At most `MOST_FINDINGS` sentences, decided ones first; speed-up and law are always among them."""
    losses, precision = loss_findings(cases), precision_findings(cases)
    room = MOST_ASKED - len(losses) - len(precision)
    settings = (*lead_findings(cases), *setting_findings(cases))[: max(0, room)]
    inputs = input_findings(cases)[: max(0, room - len(settings))]
    asked = (*losses, *settings, *inputs, *precision)
    fitted = law_findings(laws)
    own = findings(cases, most=MOST_FINDINGS - len(asked) - len(fitted))
    return decided_first((*asked, *own, *fitted))


def _merge_sentences(merged: Mapping[str, Any]) -> Iterable[str]:
    """Yield what a merge of several runs limits."""
    if merged:
        origins = ", ".join(f"{o['path']} on {o['host']}" for o in merged["sources"])
        yield (
            f"Merged from {len(merged['sources'])} runs ({origins}): ratios are taken within each run's own rounds; "
            "cases of different runs were not run in turn."
        )
        yield from (f"Left out of the merge: {text}." for text in merged["left_out"])


def _sessions(run: RunDir) -> list[dict[str, Any]]:
    """Return the sweeps that worked here; none where the only one was killed before it could note itself."""
    if not run.sessions.exists():
        return []
    sessions = run.read_json(run.sessions).get("sessions")
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise IdentityError(f"{run.sessions} is damaged: a list of sessions was expected")
    return sessions


def _text(run: RunDir) -> str:
    try:
        return run.experiment.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _counts(plan: StoredPlan, cases: Sequence[CaseRun], *, merged: bool) -> Counts:
    """Launches planned are those of all runnable cases in the rounds begun, and in `rounds_min` at least.

    Of a merged run they are those that are there: no case was planned for the rounds of every run.
    """
    runnable = [case for case in cases if case.planned.skip_reason is None]
    begun = max((launch.round + 1 for case in cases for launch in case.launches), default=0)
    launches = [launch for case in cases for launch in case.launches]
    return Counts(
        planned=len(launches) if merged else len(runnable) * max(begun, plan.budget.rounds_min),
        succeeded=sum(launch.ok for launch in launches),
        failed=sum(not launch.ok for launch in launches),
        skipped_cases=len(cases) - len(runnable),
        cases=len(cases),
        rounds=begun,
    )


def _launches(cases: Sequence[CaseRun]) -> pd.DataFrame:
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


def _breakdown(cases: Sequence[CaseRun]) -> pd.DataFrame:
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


def _phases(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """Return the spans of the cases that have others than every strategy has: data_parallel's, above all."""
    rows = [
        (case.case_id, span, mean_s, order)
        for case in cases
        if case.parts is not None and not STANDARD_SPANS.issuperset(case.parts.spans)
        for order, (span, mean_s) in enumerate(case.parts.spans.items())
    ]
    return pd.DataFrame(rows, columns=list(_PHASES))


def _proofs(cases: Sequence[CaseRun]) -> pd.DataFrame:
    rows = [
        (case.case_id, p.compared, p.dtype, p.error, p.tolerance, p.passed, p.note)
        for case in cases
        if case.proof is not None
        for p in case.proof.proofs
    ]
    return pd.DataFrame(rows, columns=list(_PROOFS))


def _inputs(cases: Sequence[CaseRun]) -> pd.DataFrame:
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


def _snapshots(cases: Sequence[CaseRun]) -> pd.DataFrame:
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
            cost.snapshots,
            cost.launches,
            cost.step_s,
            *(cost.share(steps) for steps in INTERVALS),
            cost.steps_for_small_share,
        )
        for case in cases
        if case.timings
        for cost in snapshot_costs([launch.snapshots for launch in case.good], step_time(case.timings).value)
    ]
    return pd.DataFrame(rows, columns=list(_SNAPSHOTS))


def _failures(cases: Sequence[CaseRun]) -> Iterable[Failure]:
    """Yield every launch that is not ok, every failed proof, every case skipped or without enough rounds."""
    names = labels(case.case for case in cases)
    for case in cases:
        label = names[case.case_id]
        proof = case.proof
        bad = [launch for launch in case.launches if not launch.ok]
        if proof is not None and proof.status != "ok":
            yield Failure(
                case_id=case.case_id,
                label=label,
                round=None,
                status=proof.status,
                phase=proof.phase or "proof",
                reason=case.error,
                last_log_line=proof.last_log_line,
            )
        elif case.status != "ok" and not bad:
            yield Failure(
                case_id=case.case_id,
                label=label,
                round=None,
                status=case.status,
                phase="",
                reason=case.error,
                last_log_line="",
            )
        for launch in bad:
            yield Failure(
                case_id=case.case_id,
                label=label,
                round=launch.round,
                status=launch.status,
                phase=launch.phase,
                reason=launch.error,
                last_log_line=launch.last_log_line,
            )


def _validity(
    plan: StoredPlan,
    cases: Sequence[CaseRun],
    table: pd.DataFrame,
    *,
    stop_reason: str,
    path: str,
) -> Iterable[str]:
    """Sentences on what limits the numbers, each with how many cases it concerns."""
    measured = [case for case in cases if case.timings]
    if not measured:
        yield "No case has a launch that ended well: there are no numbers."
        yield from _damage(cases, Names(cases))
        return
    names = Names(measured)
    if stop_reason == "interrupted":
        launcher = measured[0].case.launcher
        yield f"The sweep was interrupted; resume with: {resume_command(launcher, path)}"
    crowded = [case for case in measured if case.planned.oversubscribed]
    if crowded:
        yield (
            f"{names.count(crowded)} ran with more ranks than cores (oversubscribed): their numbers are kept out of "
            f"headlines and fits{names.listed(crowded)}."
        )
    few = [case for case in measured if len(case.timings) < MIN_ROUNDS]
    if few:
        yield (
            f"{names.count(few)} {_have(few)} under {MIN_ROUNDS} rounds: too few rounds to conclude "
            f"anything{names.listed(few)}."
        )
    yield from pairing_sentences(measured, names)
    flags = Counter(flag for case in measured for launch in case.good for flag in dict.fromkeys(launch.flags))
    total = sum(len(case.good) for case in measured)
    meaning = {
        "steal": "the hypervisor gave processor time to others",
        "foreign load": "other processes used the cores",
        "clock change": "a core changed its clock",
        "not steady": "steps still changed while they were timed, in these launches or in what all have in common",
        "throttled": "a CPU quota held the ranks back",
        "shared machine": "another sweep was allowed beside this one",
        "late replay": "one step in 20 or more had a moment that came over 1 % of a step after it was due",
    }
    for flag, count in flags.items():
        yield (
            f"{flag[:1].upper()}{flag[1:]} in {count} of {total} launches: {meaning[flag]}. They are kept, and "
            "their cases are marked."
        )
    yield from fault_sentences(measured, names)
    yield from staleness_sentences(measured, names)
    wide = set(table.loc[~table["ci_reached"].fillna(value=True), "case_id"])
    if wide:
        chosen = [case for case in measured if case.case_id in wide]
        yield (
            f"{names.count(chosen)} did not reach the target half-width of {100 * plan.budget.target_half_width:g} %"
            f"{_END_WORDS.get(stop_reason, '')}{names.listed(chosen)}."
        )
    unequal = [case for case in measured if any(launch.params_equal is False for launch in case.launches)]
    if unequal:
        yield f"{names.count(unequal)} ended a launch with parameters that differ between ranks{names.listed(unequal)}."
    sharing = [case for case in measured if any(launch.shares_cores for launch in case.good)]
    if sharing:
        yield f"{names.count(sharing)} had loader workers on the ranks' own cores{names.listed(sharing)}."
    apart = [case for case in measured if any(launch.hosts > 1 for launch in case.good)]
    if apart:
        yield (
            f"{names.count(apart)} ran on several hosts, which share no clock: a transfer that ends on all "
            "ranks at once took as long as its shortest rank's part; in other transfers waiting for ranks counts as "
            f"communication{names.listed(apart)}."
        )
    yield from loss_sentences(measured, names)
    yield from _damage(cases, names)
    notes = dict.fromkeys(p.note for case in measured if case.proof for p in case.proof.proofs if p.note)
    yield from (f"Proofs: {note}." for note in notes)


def _damage(cases: Sequence[CaseRun], names: Names) -> Iterable[str]:
    damaged = [text for case in cases for launch in case.launches for text in launch.damage]
    if damaged:
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        yield f"Damaged records: {damaged[0]}{more}. What cannot be read is left out."
    dropped = [case for case in cases if case.parts is not None and case.parts.dropped_transfers]
    if dropped:
        count = sum(case.parts.dropped_transfers for case in dropped if case.parts is not None)
        lack = "1 transfer lacks" if count == 1 else f"{count} transfers lack"
        yield f"{lack} a rank's record: left out{names.listed(dropped)}."


def _have(cases: Sequence[CaseRun]) -> str:
    return "has" if len(cases) == 1 else "have"
