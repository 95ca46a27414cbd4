"""A sentence that compares ranks with one process, which uses as many cores through threads without communicating."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.wording import conditions, launch_tags, name_of
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.judgement import OPEN, plain
from ddpbench.naming import ranks_of, workload_of
from ddpbench.spec import grouping
from ddpbench.units import counted


def one_process_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return a finding that compares the reference case with one process of about as many threads.

    Empty if no such process was measured, or if there are too few rounds.
    """
    families = Families(cases)
    judged = families.judge_one_process()
    if families.one_process is None or judged is None or judged.verdict == "too few":
        return ()
    ranks, process = families.one_process
    case, batches = ranks.case, [run.case.global_batch for run in families.one_process]
    who = f"{name_of(ranks)} at {ranks_of(case)}"
    other = f"one process with {counted(process.case.threads_per_rank, 'thread')}"
    rate = f"trains {plain(judged.ratio.reciprocal())} times the samples/s"
    text = sentence(f"{who} {rate} of {other}", [workload_of(case)])
    if judged.verdict == "unresolved":
        text = sentence(f"{who} against {other}", [workload_of(case)], f": {OPEN}; it {rate}")
    return (
        Finding(
            kind="threads",
            text=text,
            tags=(
                *grouping.qualifiers(case),
                *(["{:,} and {:,} samples per step".format(*batches)] if len(set(batches)) > 1 else []),
                *conditions(families.one_process),
                *judged.size_tags,
                *launch_tags(judged.rounds, families.parts),
            ),
            evidence="summary",
            verdict=judged.verdict,
            cases=(ranks.case_id, process.case_id),
        ),
    )
