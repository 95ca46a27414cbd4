"""Families of cases that are compared with each other: all cases of a panel at one number of ranks.

A report takes all statements on two cases from their family. The 5 % are divided among a run's families (Bonferroni). A
pair that a claim names has the claim's interval (`claims.py`) here too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.findings.groups import grouped, measured, panels, with_one_process
from ddpbench.analysis.judging import judge_pair
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.best import Family
from ddpbench.analysis.statistics.judgement import Judgement, Standing
from ddpbench.analysis.statistics.stats import ALPHA, MIN_ROUNDS, pairs
from ddpbench.spec import grouping
from ddpbench.strategies.traits import traits_of


class Families:
    """The families of a run. The intervals of a family are computed when first needed."""

    def __init__(self, cases: Sequence[CaseRun]) -> None:
        self._members = [
            family
            for members in panels(measured(cases))
            for family in grouped(
                [run for run in members if traits_of(run.case).role != "base"],
                lambda run: run.case.world_size,
            ).values()
            if len(family) > 1
        ]
        self._of: dict[str, list[int]] = {}
        for place, family in enumerate(self._members):
            for run in family:
                self._of.setdefault(run.case_id, []).append(place)
        several = {
            self._panel(family)
            for family in self._members
            if sum(len(run.timings) >= MIN_ROUNDS for run in family) > 1
        }
        self.one_process = with_one_process(cases)
        """The first panel's reference case, and a one-process case with about as many threads in total; or None."""
        also = (
            self.one_process is not None
            and len(pairs(*(run.timings for run in self.one_process))) >= MIN_ROUNDS
        )
        self.parts = max(1, len(several) + also)
        """Number of families among which the 5 % are divided."""
        self._alpha = ALPHA / self.parts
        self._found: dict[int, Family] = {}

    @staticmethod
    def _panel(family: Sequence[CaseRun]) -> grouping.GroupKey:
        """Return the family's panel: that of its last case, since the first may belong to several panels."""
        return grouping.panel(family[-1].case)

    def family_of(self, runs: Sequence[CaseRun]) -> Family | None:
        """Return the family that contains all of these cases; None if no family does."""
        shared = set.intersection(*(set(self._of.get(run.case_id, ())) for run in runs)) if runs else set()
        if not shared:
            return None
        place = min(shared)
        if place not in self._found:
            family = self._members[place]
            self._found[place] = Family(
                {run.case_id: run.timings for run in family},
                alpha=self._alpha,
                claimed={(run.case_id, other): one for run in family for other, one in run.claimed.items()},
            )
        return self._found[place]

    def judge(self, a: CaseRun, b: CaseRun) -> Judgement | None:
        """Compare A with B; None without a family that contains both, or without launches."""
        family = self.family_of((a, b))
        return family.pair(a.case_id, b.case_id) if family is not None else None

    def comparisons(self, a: CaseRun, b: CaseRun) -> int:
        """Return the number of comparisons among which `judge` divides the error probability; 0 without a judgement."""
        family, judged = self.family_of((a, b)), self.judge(a, b)
        if family is None or judged is None:
            return 0
        return judged.comparisons if b.case_id in a.claimed else family.size * (family.size - 1) // 2

    def judge_one_process(self) -> Judgement | None:
        """Compare the reference case with one process of about as many threads; None if either case is missing."""
        return judge_pair(*self.one_process, self._alpha) if self.one_process is not None else None

    def standings(self, runs: Sequence[CaseRun]) -> dict[str, Standing]:
        """Return each case's standing among these cases, by case id; empty if no family contains all of them."""
        family = self.family_of(runs)
        return family.standings([run.case_id for run in runs]) if family is not None else {}
