"""Turn a run directory into a `RunSummary`, from which the report is drawn and the command line prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.analysis.case_summary import case_summary
from ddpbench.analysis.decided import decide
from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.all_claims import claims_answer
from ddpbench.analysis.findings.answer import answer_of
from ddpbench.analysis.findings.claims import claim_findings
from ddpbench.analysis.findings.compared import MOST_FINDINGS, decided_first, findings
from ddpbench.analysis.findings.inputs import input_findings
from ddpbench.analysis.findings.lead import lead_findings
from ddpbench.analysis.findings.loss import loss_findings
from ddpbench.analysis.findings.one_process import one_process_findings
from ddpbench.analysis.findings.precision import precision_findings
from ddpbench.analysis.findings.settings import setting_findings
from ddpbench.analysis.findings.table import compared
from ddpbench.analysis.findings.virtual import virtual_sentences
from ddpbench.analysis.names import Names
from ddpbench.analysis.network import network_results
from ddpbench.analysis.overview.failures import failures_of
from ddpbench.analysis.overview.provenance import provenance_sentences
from ddpbench.analysis.overview.summary_cache import CachedSummary
from ddpbench.analysis.overview.tables import (
    costs_of_checkpoints,
    input_results,
    launch_results,
    phases_of,
    proofs_of,
    step_parts,
)
from ddpbench.analysis.overview.validity import merge_sentences, validity_sentences
from ddpbench.analysis.overview.warnings import warning_sentences
from ddpbench.analysis.read.alternation import alone_sentence, alternation_sentence
from ddpbench.analysis.read.cases import of_no_case
from ddpbench.analysis.read.fabrics import fabric_sentences, fabrics_of
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.positions import position_spread
from ddpbench.analysis.read.reading import read_cases_of
from ddpbench.analysis.scaling.curves import CurveLaws, LawsOf, judged_laws, law_findings
from ddpbench.analysis.step_times import rank_times
from ddpbench.analysis.steps.communication import transfer_results
from ddpbench.analysis.steps.one_step import one_step
from ddpbench.analysis.steps.waterfall import waterfall_of
from ddpbench.analysis.summary import (
    Communication,
    Conclusions,
    Counts,
    Course,
    RunFacts,
    RunSummary,
    StepResults,
    TrainingResults,
)
from ddpbench.analysis.time_to_loss import loss_points, trained_to_loss
from ddpbench.helper_process import NOBODY, Others
from ddpbench.installed import with_features
from ddpbench.progress import OnProgress, ignore_progress
from ddpbench.records import RunDir, left_out_sentences
from ddpbench.records.machine import read_machine, read_merged
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.records.sessions import read_sessions
from ddpbench.spec.documents import stated_scope
from ddpbench.spec.grouping import UNDISTURBED
from ddpbench.spec.shipped import with_known_answers, with_known_history

FEWEST_FINDINGS = 3
"""Number of findings for which there is always room besides verdicts on claims, however many claims there are."""
WORTH_KEEPING = 100
"""Smallest number of cases for which a summary is cached. Summaries of fewer cases take about a second to make."""
MOST_ASKED = 3
"""Largest number of sentences on losses, links, options, inputs and precision, for sweeps that vary these."""


def summarize(run: RunDir, others: Others = NOBODY, progress: OnProgress = ignore_progress) -> RunSummary:
    """Return the summary of a run directory, without unfinished launches.

    A summary of many cases is cached, and made again only if a file has changed. Processes in `others` help to make it,
    and `progress` is called meanwhile.

    Raises:
        IdentityError: `run` is not a run directory, or has another schema.
    """
    plan = read_plan(run)
    if len(plan.cases) < WORTH_KEEPING:
        return _summarized(run, plan, others, progress)
    kept = CachedSummary(run, plan)
    found = kept.summary()
    if found is None:
        found = _summarized(run, plan, others, progress)
        kept.keep(found)
    return found


def _summarized(run: RunDir, plan: StoredPlan, others: Others, progress: OnProgress) -> RunSummary:
    cases = read_cases_of(run, plan, others, progress)
    progress("comparing cases", 0, 0)
    machine = read_machine(run)
    fitted = LawsOf(cases, machine, others.first)
    merged = read_merged(run)
    fabrics = fabrics_of(run)
    stated = with_known_answers(
        with_known_history(plan.claims, plan.experiment, plan.run_id), plan.experiment, plan.question
    )
    decided = decide(plan, cases, machine, fabrics, stated)
    checks, claims, cases, table = decided.checks, decided.claims, decided.cases, decided.table
    withheld = checks.withheld
    claimed = claim_findings(claims, cases)
    laws = judged_laws(fitted.found(), cases)
    usable = [run for run in cases if run.case_id not in withheld]
    sound = [curve for curve in laws if not withheld.keys() & set(curve.case_ids.values())]
    sentences = (*claimed, *_findings(usable, sound, most=max(FEWEST_FINDINGS, MOST_FINDINGS - len(claimed))))
    step, step_absent = one_step(run, cases)
    names, rotating = Names(cases), cases if plan.budget.turns != "launches" else ()
    sweeps, text = _sweeps(run), run.experiment_text() or ""
    counts = _counts(plan, cases, merged=bool(merged))
    left_out = [*(one for case in cases for one in case.left_out), *of_no_case(run, plan)]
    misplaced = left_out_sentences(left_out, run.path)
    validity = (
        *checks.sentences,
        *misplaced,
        *merge_sentences(merged),
        *validity_sentences(plan, decided.results, stop_reason=sweeps.stop_reason, path=str(run.path)),
        *virtual_sentences(decided.results),
        *fabric_sentences(fabrics),
        *provenance_sentences(machine),
    )
    return RunSummary(
        about=RunFacts(
            name=plan.experiment,
            question=plan.question,
            scope=plan.scope or stated_scope(text),
            machine=machine,
            experiment_toml=text,
            run_path=str(run.path),
            merged_from=tuple(str(origin["path"]) for origin in merged.get("sources", ())),
        ),
        course=Course(
            counts=counts,
            failures=tuple(failures_of(cases)),
            stop_reason=sweeps.stop_reason,
            wall_s=sweeps.wall_s,
            measured_share=sweeps.measured_s / sweeps.wall_s if sweeps.wall_s > 0 else None,
            position_spread=position_spread(plan.order, counts.rounds),
            alternation=alternation_sentence(rotating, names),
            alone=alone_sentence(rotating, names),
        ),
        conclusions=Conclusions(
            findings=sentences,
            answer=answer_of(cases, sentences, claims_answer(claims, claimed, cases, withheld), withheld),
            claims=claims,
            warnings=tuple(warning_sentences(cases, checks)),
            validity=validity,
            left_out=tuple(misplaced),
            checks=checks,
        ),
        cases=table,
        by_case=tuple(map(case_summary, decided.results)),
        planned={run.case_id: run.case for run in cases},
        steps=StepResults(
            launches=tuple(launch_results(cases)),
            comparisons=tuple(compared(cases, withheld.keys())),
            breakdown=tuple(step_parts(cases)),
            by_rank=tuple(rank_times(cases)),
            phases=tuple(phases_of(cases)),
            waterfall=tuple(waterfall_of(cases)),
            laws=laws,
            one_step=step,
            one_step_absent=step_absent,
        ),
        communication=Communication(
            transfers=tuple(transfer_results(cases)), network=tuple(network_results(cases)), fabrics=fabrics
        ),
        training=TrainingResults(
            proofs=tuple(proofs_of(cases)),
            loss_curves=tuple(loss_points(cases)),
            time_to_loss=tuple(trained_to_loss(cases)),
        ),
        inputs=tuple(input_results(cases)),
        checkpoints=tuple(costs_of_checkpoints(cases)),
    )


def _findings(cases: Sequence[CaseRun], laws: Sequence[CurveLaws], most: int) -> tuple[Finding, ...]:
    of_features = with_features("findings", {}).values()
    if first := [one for findings_of in of_features for one in findings_of(cases)][: most - 1]:
        whole = [run for run in cases if run.case.recovery in UNDISTURBED]
        return (*first, *findings(whole, most=most)[: most - len(first)])
    losses, precision = loss_findings(cases), precision_findings(cases)
    room = MOST_ASKED - len(losses) - len(precision)
    settings = (*lead_findings(cases), *setting_findings(cases))[: max(0, room)]
    inputs = input_findings(cases)[: max(0, room - len(settings))]
    asked = (*losses, *settings, *inputs, *precision, *one_process_findings(cases))
    fitted = law_findings(laws, cases)
    own = findings(cases, most=max(FEWEST_FINDINGS, most - len(asked) - len(fitted)))
    return decided_first((*asked, *own, *fitted))[:most]


@dataclass(frozen=True, slots=True)
class _Sweeps:
    wall_s: float
    measured_s: float
    stop_reason: str


def _sweeps(run: RunDir) -> _Sweeps:
    sessions = read_sessions(run)
    return _Sweeps(
        wall_s=sum(float(session.get("wall_s") or 0) for session in sessions),
        measured_s=sum(float(session.get("measured_s") or 0) for session in sessions),
        stop_reason=str(sessions[-1].get("stop_reason") or "") if sessions else "interrupted",
    )


def _counts(plan: StoredPlan, cases: Sequence[CaseRun], *, merged: bool) -> Counts:
    """Return the counts. A merged run counts its existing launches as planned."""
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
