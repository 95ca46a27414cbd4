"""Autocast: cases in several precisions, each compared with the same case in full precision, paired by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.analysis.judging import judge_pairs
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.judgement import Judgement
from ddpbench.spec import grouping
from ddpbench.spec.grouping import GroupKey

ORDER = ("full", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionGroup:
    """Cases that differ only in precision.

    `others` are compared with `full`, the case in full precision.
    """

    full: CaseRun
    others: tuple[tuple[CaseRun, Judgement], ...]


def precision_groups(cases: Sequence[CaseRun]) -> list[PrecisionGroup]:
    """Return the measured cases in groups that differ only in precision, judged as one family.

    A group needs a case in full precision and at least one other.
    """
    groups: dict[GroupKey, list[CaseRun]] = {}
    for run in cases:
        if run.status == "ok" and run.timings:
            groups.setdefault(grouping.alike(run.case, but=("precision",)), []).append(run)
    found: list[PrecisionGroup] = []
    several = [
        sorted(members, key=lambda run: ORDER.index(run.case.precision)) for members in groups.values()
    ]
    held = [(full, others) for full, *others in several if full.case.precision == "full" and others]
    judged = judge_pairs({run.case_id: (run, full) for full, others in held for run in others})
    for full, others in held:
        kept = tuple((run, judged[run.case_id]) for run in others if run.case_id in judged)
        found.append(PrecisionGroup(full=full, others=kept))
    return found
