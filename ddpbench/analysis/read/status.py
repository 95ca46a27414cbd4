"""A case's status and, if the case is not ok, a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddpbench.analysis.read.launches import Launch, ProofRun
from ddpbench.errors import IdentityError
from ddpbench.records import WORST_FIRST, CaseStatus, RunDir
from ddpbench.records.machine import read_machine, read_merged
from ddpbench.records.plan import MergedRun, Starter, StoredPlan
from ddpbench.records.rundir import held_elsewhere
from ddpbench.records.submission_dir import SubmissionDir
from ddpbench.spec import PlannedCase
from ddpbench.text_safety import command
from ddpbench.units import format_seconds
from ddpbench.workloads import is_import_path

_MOST_NAMED = 3
"""Largest number of a merged run's sources that a sentence names."""


def status_of(
    plan: StoredPlan,
    planned: PlannedCase,
    launches: Sequence[Launch],
    proof: ProofRun | None,
    path: Path,
    *,
    spent: bool,
) -> tuple[CaseStatus, str]:
    """Return a case's status and, if it is not ok, a sentence that says what to do.

    Fewer rounds than planned suffice if the budget was `spent`. In a merged run, a case is ok if any run has it ok, or
    if all runs together have the largest required number of rounds.
    """
    if planned.skip_reason is not None:
        return "skipped", planned.skip_reason
    if proof is not None and proof.status != "ok":
        return proof.status, proof.error or "the proof before timing failed; see its log in the case's folder"
    merged = plan.merged_of(planned.case.case_id)
    asked = max((run.rounds_min for run in merged), default=plan.budget.rounds_min)
    own = [(run, _of(run, launches)) for run in merged]
    if _are_enough(launches, asked, spent=spent) or any(
        _are_enough(found, run.rounds_min, spent=run.spent) for run, found in own
    ):
        return "ok", ""
    ok = sum(launch.ok for launch in launches)
    bad = [launch for launch in launches if not launch.ok]
    if bad:
        worst = min(bad, key=lambda launch: WORST_FIRST.index(launch.status))
        counted = f"{len(bad)} of {len(launches)} launches {'were' if len(bad) != 1 else 'was'} not ok"
        folder = RunDir(path).launch(worst.case_id, "measure", worst.round)
        logs = f"logs in {folder.path}; " if folder.log_files() else ""  # some runs are stored without logs
        names = (planned.case.workload, planned.case.strategy, planned.case.algorithm)
        instead = ""
        if files := dict.fromkeys(name.rpartition(":")[0] for name in names if is_import_path(name)):
            # Numbers of two versions of a program do not belong in one run.
            instead = f"; if the fix changes {' or '.join(files)}, measure into another --out instead"
        failed = [run for run, found in own if not all(launch.ok for launch in found)]
        again = resume_command(path, "--retry-failed", merged=failed, instead=instead)
        advice = f"once fixed, measure again with: {again}"
        return worst.status, f"round {worst.round + 1}: {worst.error} ({counted}; {logs}{advice})"
    if spent and not ok:
        total = format_seconds(plan.budget.total)
        sentence = f"not measured: budget.total, {total}, was spent before its first launch"
    else:
        sentence = f"measured in {ok} of at least {asked} rounds so far"
    return "unfinished", f"{sentence}; {going_on(path, merged=merged)}"


def _of(run: MergedRun, launches: Sequence[Launch]) -> list[Launch]:
    return [launch for launch in launches if run.first_round <= launch.round < run.end_round]


def _are_enough(launches: Sequence[Launch], rounds_min: int, *, spent: bool) -> bool:
    ok = sum(launch.ok for launch in launches)
    return ok >= (1 if spent and ok == len(launches) else rounds_min)


def going_on(path: Path, *, merged: Sequence[MergedRun] = ()) -> str:
    """Say how to resume a run, or which process is measuring it now. Arguments are those of `resume_command`."""
    if holder := held_elsewhere(RunDir(path)):
        return f"it is being measured by {holder}"
    return f"resume with: {resume_command(path, merged=merged)}"


def resume_command(path: Path | str, *flags: str, merged: Sequence[MergedRun] = (), instead: str = "") -> str:
    """Return a text with the command that resumes a run: a sweep, a submission, or a launcher's lines.

    For a merged run, it has the commands for the sources, to be merged again.

    Args:
        path: the run directory.
        flags: further arguments of the command.
        merged: the sources to resume; all of them if empty.
        instead: words for an alternative, appended to the command.
    """
    run = RunDir(Path(path))
    try:
        context = read_machine(run).get("context", {})
        sources = read_merged(run).get("sources", ())
    except IdentityError:  # the report says so
        context, sources = {}, ()
    if not sources:
        starter: Starter = "sweep"
        if "submitted_nodes" in context or "planned_nodes" in context:
            starter = "submit" if "submitted_nodes" in context else "plan"
        return _command(path, starter, flags) + instead
    submission = SubmissionDir(run.path.parent)
    if submission.is_there and run.path == submission.merged.path:
        return command("ddpbench", "submit", submission.path, *flags) + instead
    named: dict[str, None] = {}
    for one in merged:
        named[_command(one.path, one.started_by, flags)] = None
    for source in () if named else sources:
        named[_command(str(source["path"]), "sweep", flags)] = None
    listed = [*named][:_MOST_NAMED]
    more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    return f"{' or '.join([*listed, *more])}{instead}, then merge again"


def _command(path: Path | str, starter: Starter, flags: Sequence[str]) -> str:
    path = Path(path)  # of which `command` makes no option
    if starter == "submit":
        return command("ddpbench", "submit", path.parent, *flags)
    if starter == "plan":
        lines = f"the lines of {command('ddpbench', 'plan', path)}"
        return f"{lines}, with {command(*flags)} at their end" if flags else lines
    return command("ddpbench", "sweep", path, *flags)
