"""Table of comparisons: every case compared with the best of the others of its group."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set

from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import bucket_groups, layout_groups, rank_groups, strategy_groups
from ddpbench.analysis.inputs import input_groups
from ddpbench.analysis.precisions import precision_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.results import Compared
from ddpbench.analysis.statistics.interval import Interval


def compared(cases: Sequence[CaseRun], withheld: Set[str] = frozenset()) -> Iterator[Compared]:
    """Yield every case compared with the best of the others of its group, for groups of two or more.

    `buckets`: one strategy's bucket caps at one number of ranks. `strategies`: the strategies that
    aggregate, at one number of ranks, at DDP's default cap (or the smallest there is). `layouts`: one strategy's
    layouts of a number of ranks on nodes. Where there are several, the other topics keep to one. `ranks`: all cases
    of a panel that aggregate, at one number of ranks with separate cores for each. `ratio` is a case's step time
    over that of the fastest of the others, `best_case_id`; its ends and the verdict are `Families`'.

    `data`: a case compared with the same case with its batches in memory, which takes the best's place; `precision`:
    a case under autocast compared with the same one in full precision, likewise. Their verdicts are `judge_all`'s.

    Cases compared with one that is `withheld`, by id, because its numbers must be wrong, have no verdict.
    """
    every = Families(cases)
    families = Families([run for run in cases if run.case_id not in withheld])  # as in the findings
    for topic, groups in (
        ("buckets", bucket_groups(cases)),
        ("strategies", strategy_groups(cases)),
        ("layouts", layout_groups(cases)),
        ("ranks", rank_groups(cases)),
    ):
        for group in groups:
            wrong = any(run.case_id in withheld for run in group)
            for case_id, one in (every if wrong else families).standings(group).items():
                ratio, verdict = (
                    (Interval(value=one.ratio.value), "cannot tell") if wrong else (one.ratio, one.verdict)
                )
                yield _compared(topic, case_id, one.against, ratio, verdict)
    for member in itertools.chain.from_iterable(group.members for group in input_groups(cases)):
        if member.judged is not None and member.twin is not None:
            ids = (member.run.case_id, member.twin.case_id)
            verdict = member.judged.verdict if withheld.isdisjoint(ids) else "unresolved"
            yield _compared("data", *ids, member.judged.ratio, verdict)
    for held in precision_groups(cases):
        for run, judged in held.others:
            ids = (run.case_id, held.full.case_id)
            verdict = judged.verdict if withheld.isdisjoint(ids) else "unresolved"
            yield _compared("precision", *ids, judged.ratio, verdict)


def _compared(topic: str, case_id: str, other: str, ratio: Interval, verdict: str) -> Compared:
    return Compared(topic=topic, case_id=case_id, best_case_id=other, ratio=ratio, verdict=verdict)
