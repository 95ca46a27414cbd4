"""The remark that every compared case of several ranks trains fewer samples per second than one rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.analysis.findings.wording import MOST_SHARED
from ddpbench.analysis.judging import rate_ratio
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_two_digits


@dataclass(frozen=True, kw_only=True, slots=True)
class BelowOne:
    """Cases of several ranks that are all shown to train slower than their base cases.

    `least` is the smallest of the lower bounds of the base case's samples/s divided by a case's.
    """

    cases: int
    least: float

    @property
    def clause(self) -> str:
        """Return the remark for use at the end of an answer about these cases."""
        return f"all are slower than one rank ({self._times})"

    @property
    def tag(self) -> str:
        """Return the remark for use beneath an answer."""
        every = f"all {self.cases} cases" if self.cases > 1 else "the case"
        are = "are" if self.cases > 1 else "is"
        return f"{every} of several ranks {are} slower than one rank, which is {self._times} as fast"

    @property
    def _times(self) -> str:
        exponent = 1 - math.floor(math.log10(self.least))
        return f"at least {format_two_digits(math.floor(self.least * 10**exponent) / 10**exponent)} times"


def all_below_one(cases: Sequence[CaseRun]) -> BelowOne | None:
    """Return the remark if every compared case is shown to train slower than one rank; otherwise None.

    The compared cases are all measured cases of several ranks that exchange gradients or parameters. Their intervals
    are corrected for the number of cases (Bonferroni), and allow for ranks that waited for shared cores. None also if
    no case is compared, or if one has no base case.
    """
    by_id = {run.case_id: run for run in cases}
    several = [
        run
        for run in cases
        if run.status == "ok" and run.timings and run.case.world_size > 1 and traits_of(run.case).exchanges
    ]
    found = []
    for run in several:
        base, shared = by_id.get(run.baseline_id), run.shared_cores_share
        rate = rate_ratio(run, base, ALPHA / len(several)) if base is not None else None
        if rate is None or rate.high is None or shared is None or shared >= MOST_SHARED:
            return None
        if rate.high / (1 - shared) >= 1:
            return None
        found.append((1 - shared) / rate.high)
    return BelowOne(cases=len(found), least=min(found)) if found else None
