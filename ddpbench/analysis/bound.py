"""The upper bound: independent ranks, which exchange nothing; of which cases it is one, and whether it is established.

A bound that lies below what it bounds is none: its own launches were disturbed, or too few. Whoever tells how far a
case is from its bound, or what part of its time the bound explains, asks here first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol, TypeVar

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.judgement import MARGIN
from ddpbench.analysis.statistics.stats import samples_rate
from ddpbench.spec import Case, grouping
from ddpbench.strategies.traits import traits_of


def is_bounded(case: Case) -> bool:
    """Return whether independent ranks bound this case: its ranks do all that they do, and exchange something too.

    Ranks that share out the model or its update do less each than independent ones, and may be faster; so may those
    whose model another framework computes.
    """
    traits = traits_of(case)
    return traits.whole_state and traits.exchanges and traits.engine == "torch"


class _OfCase(Protocol):
    @property
    def case(self) -> Case: ...


_T = TypeVar("_T", bound=_OfCase)


def bounds_of(runs: Iterable[_T]) -> dict[Hashable, _T]:
    """Return the independent ranks by what decides how long ranks compute: `grouping.deciding("compute", case)`."""
    return {
        grouping.deciding("compute", run.case): run for run in runs if traits_of(run.case).role == "bound"
    }


def outruns(case: Case, rate: float, bound_rate: float) -> bool:
    """Return whether a case's throughput is more than 2 % above its bound, which then is refuted.

    Both rates in samples per second of the whole job. Values decide, and not intervals: a bound so uncertain that it
    may be lower is not shown with a higher number.
    """
    return is_bounded(case) and rate > bound_rate * (1 + MARGIN)


def outrun(run: CaseRun, bound: CaseRun) -> bool:
    """Return the same for two cases with timed launches."""
    return outruns(run.case, samples_rate(run.timings).value, samples_rate(bound.timings).value)
