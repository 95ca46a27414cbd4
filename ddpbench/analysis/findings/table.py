"""Table that compares every case with the fastest other case of its group."""

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
    """Yield a comparison of every case with the best other case of its group, for each topic.

    - `buckets`: one strategy's bucket caps at one number of ranks.
    - `strategies`: strategies that aggregate, at one number of ranks and at DDP's default cap (or the smallest that was
      run).
    - `layouts`: one strategy's layouts of a number of ranks on nodes. With several layouts, `buckets` and `strategies`
      compare within a layout.
    - `ranks`: all cases of a panel that aggregate, at one number of ranks with separate cores.
    - `data`: a case and its copy with batches in memory, which counts as the best.
    - `precision`: a case under autocast and its copy in full precision, which counts as the best.

    `ratio` is a case's step time divided by that of `best_case_id`. `withheld` has the ids of cases whose numbers must
    be wrong; they get no verdict.
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
