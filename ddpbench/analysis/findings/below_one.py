"""The remark that every compared case of several ranks trains fewer samples per second than one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.analysis.findings.wording import MOST_SHARED
from ddpbench.analysis.judging import joint_rate_ratio
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.judgement import above_one
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_two_digits, format_two_digits_down


@dataclass(frozen=True, kw_only=True, slots=True)
class BelowOne:
    """Cases of several ranks that are all shown to train slower than their base cases.

    `measured` are the base case's samples/s divided by each case's. `least` is the smallest lower bound of these
    ratios, whose intervals hold at once.
    """

    measured: tuple[float, ...]
    least: float

    @property
    def clause(self) -> str:
        """Return the remark for use at the end of an answer about these cases."""
        return f"all are slower than one rank ({self._bound})"

    @property
    def tag(self) -> str:
        """Return the remark for use beneath an answer."""
        several = len(self.measured) > 1
        which = (
            f"all {len(self.measured)} cases of several ranks are"
            if several
            else "the case of several ranks is"
        )
        ends = (format_two_digits(end) for end in (min(self.measured), max(self.measured)))
        return f"{which} slower than one rank, which is {' to '.join(dict.fromkeys(ends))} times as fast, {self._bound}"

    @property
    def _bound(self) -> str:
        least = f"at least {format_two_digits_down(self.least)} times"
        return f"{least} in every case" if len(self.measured) > 1 else least


def all_below_one(cases: Sequence[CaseRun]) -> BelowOne | None:
    """Return the remark if every compared case is shown to train slower than one rank; otherwise None.

    Measured cases of several ranks are compared if they exchange gradients or parameters. The intervals are corrected
    for the number of cases (Bonferroni), and allow for waiting for shared cores.
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
        rate = joint_rate_ratio(run, base, len(several)) if base is not None else None
        if rate is None or rate.high is None or shared is None or shared >= MOST_SHARED:
            return None
        slower = rate.reciprocal().scaled(1 - shared)
        if not above_one(slower) or slower.low is None:
            return None
        found.append((1 / rate.value, slower.low))
    if not found:
        return None
    return BelowOne(measured=tuple(value for value, _ in found), least=min(low for _, low in found))
