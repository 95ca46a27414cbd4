"""Read a run directory into cases and their launches, without tables and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpbench.analysis.read.alternation import with_corrections
from ddpbench.analysis.read.launches import NOT_STEADY, CaseRun, Launch, ProofRun
from ddpbench.analysis.read.measurement import damage_sentence, read_measurement
from ddpbench.analysis.read.overlap import Instrumented, breakdowns
from ddpbench.analysis.read.parts import RankSteps
from ddpbench.analysis.read.status import status_of
from ddpbench.analysis.statistics.correlation import correlation_of
from ddpbench.analysis.statistics.steady import unsteady
from ddpbench.progress import OnProgress, ignore_progress
from ddpbench.records import (
    Address,
    Costs,
    LaunchDir,
    LaunchRecords,
    LeftOut,
    Proof,
    RunDir,
    read_launch,
)
from ddpbench.records.plan import StoredPlan
from ddpbench.records.sessions import Sessions, stop_reason_of
from ddpbench.spec import grouping
from ddpbench.strategies.traits import told_apart


def read_cases(run: RunDir, plan: StoredPlan) -> list[CaseRun]:
    """Return every planned case with its launches, in the plan's order.

    Unfinished launches and misplaced files are left out. `CaseRun.left_out` lists the misplaced files.
    """
    return judged(read_unjudged(run, plan))


def read_unjudged(run: RunDir, plan: StoredPlan, on_progress: OnProgress = ignore_progress) -> list[CaseRun]:
    """Return every planned case with its launches, without the values that `judged` adds from all cases together."""
    cases: list[CaseRun] = []
    instrumented: list[Instrumented] = []
    sessions = Sessions.of(run)
    spent = stop_reason_of(run) == "budget"
    order = frozenset(plan.order)
    for planned, case_id in zip(plan.cases, plan.ids, strict=True):
        on_progress("reading cases", len(cases), len(plan.cases))
        launches: list[Launch] = []
        steps: dict[int, dict[int, RankSteps]] = {}
        folders, misnamed = run.folders(case_id)
        left_out = [LeftOut("misnamed", path, "") for path in misnamed]
        for directory in folders:
            number = directory.number or 0
            if order and (number, case_id) not in order:
                left_out.append(LeftOut("unplanned", directory.path, ""))
                continue
            address = Address(planned.case, case_id, "measure", number, plan.run_id)
            read = read_measurement(directory, address, sessions)
            left_out += read.left_out
            if read.launch is not None:
                launches.append(read.launch)
                if read.steps:
                    steps[number] = read.steps
        proof, strays = _read_proof(
            run.launch(case_id, "proof"), Address(planned.case, case_id, "proof", 0, plan.run_id)
        )
        left_out += strays
        if proof is not None and proof.status == "skipped":
            planned = replace(planned, skip_reason=proof.error)
        status, error = status_of(plan, planned, launches, proof, run.path, spent=spent)
        known = steps if status != "diverged" else {}
        instrumented.append(
            Instrumented(
                launches=[*known.values()],
                rounds=[*known],
                processes=max((launch.processes for launch in launches), default=1),
                backend=planned.case.backend,
            )
        )
        cases.append(
            CaseRun(
                planned=planned,
                launches=tuple(launches),
                proof=proof,
                parts=None,
                status=status,
                error=error,
                case_id=case_id,
                baseline_id=planned.case.baseline().case_id,
                left_out=tuple(left_out),
            )
        )
    return [replace(case, parts=parts) for case, parts in zip(cases, breakdowns(instrumented), strict=True)]


def of_no_case(run: RunDir, plan: StoredPlan) -> list[LeftOut]:
    """Return the folders within `cases/` that belong to no case of the plan."""
    known = frozenset(plan.ids)
    return [LeftOut("unknown case", run.case(name), "") for name in run.case_folders() if name not in known]


def judged(cases: Sequence[CaseRun]) -> list[CaseRun]:
    """Return the cases with the values that depend on all cases of the run.

    These are flags of launches that are not steady, distinct names of users' strategies, corrections of timings, and
    the correlation of rounds. Base cases with which no other case is compared get no speed-up.
    """
    apart = told_apart([run.case for run in cases])
    cases = [
        run if run.case is case else replace(run, planned=replace(run.planned, case=case))
        for run, case in zip(cases, apart, strict=True)
    ]
    baseless = grouping.base_of_none(run.case for run in cases)
    used = {run.baseline_id for run in cases if run.case_id != run.baseline_id}
    cases = [
        replace(run, baseline_id="")
        if run.case in baseless or (run.planned.added_as_baseline and run.case_id not in used)
        else run
        for run in cases
    ]
    changes = {run.case_id: [x.change for x in run.good if x.change is not None] for run in cases}
    found = unsteady(changes)
    judged_runs: list[CaseRun] = []
    for run in cases:
        verdicts = iter(found[run.case_id])
        good = set(map(id, run.good))
        launches = tuple(
            _judged(launch, next(verdicts)) if id(launch) in good and launch.change is not None else launch
            for launch in run.launches
        )
        judged_runs.append(replace(run, launches=launches))
    judged_runs = with_corrections(judged_runs)
    reckoned = correlation_of([run.timings for run in judged_runs]).reckoned
    return [run.correlated(reckoned) for run in judged_runs] if reckoned else judged_runs


def _judged(launch: Launch, changing: bool) -> Launch:
    if not launch.ready or (launch.steady is (not changing) and changing == (NOT_STEADY in launch.flags)):
        return launch
    others = tuple(flag for flag in launch.flags if flag != NOT_STEADY)
    return replace(launch, steady=not changing, flags=(*others, NOT_STEADY) if changing else others)


def _read_proof(directory: LaunchDir, address: Address) -> tuple[ProofRun | None, Sequence[LeftOut]]:
    """Return a case's proof (None if unfinished), and the files in its folder that belong elsewhere."""
    records: LaunchRecords = read_launch(directory, address)
    return _proof_of(records) if records.finished else None, records.left_out


def _proof_of(records: LaunchRecords) -> ProofRun:
    first = min(records.ranks, key=lambda rank: rank.rank, default=None)
    costs = first.last(Costs) if first is not None else None
    outcome = records.outcome
    return ProofRun(
        status=outcome.status if outcome is not None else "failed",
        error=outcome.error if outcome is not None else damage_sentence(records.damage),
        phase=outcome.phase if outcome is not None else "",
        last_log_line=outcome.last_log_line if outcome is not None else "",
        proofs=tuple(first.of(Proof)) if first is not None else (),
        flops_per_sample=costs.flops_per_sample if costs is not None else None,
        dataset_samples=costs.dataset_samples if costs is not None else None,
    )
