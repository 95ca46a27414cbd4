"""Upper bounds on throughput, measured with independent ranks, which exchange nothing.

Check `outruns` before reporting a distance from a bound: a case above its bound shows that the bound is wrong.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable
from typing import Protocol, TypeVar

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.judgement import MARGIN
from ddpbench.spec import Case, grouping
from ddpbench.strategies.traits import traits_of


def is_bounded(case: Case) -> bool:
    """Return whether independent ranks, which exchange nothing, are an upper bound on this case's rate.

    Ranks that divide the model or its update do less work than independent ranks, so they have no bound. Nor has a
    model that another framework than torch computes.
    """
    traits = traits_of(case)
    return traits.whole_state and traits.exchanges and traits.engine == "torch"


class _OfCase(Protocol):
    @property
    def case(self) -> Case: ...


_T = TypeVar("_T", bound=_OfCase)


def bounds_of(runs: Iterable[_T]) -> dict[Hashable, _T]:
    """Return the cases of independent ranks, keyed by all settings that decide compute time.

    The key of a case is `grouping.deciding("compute", case)`.
    """
    return {
        grouping.deciding("compute", run.case): run for run in runs if traits_of(run.case).role == "bound"
    }


def outruns(case: Case, rate: float, bound_rate: float) -> bool:
    """Return whether a case's throughput exceeds its bound by more than 2 %. The bound is then wrong.

    Both rates are in samples per second of the whole job. Their intervals are not considered.
    """
    return is_bounded(case) and rate > bound_rate * (1 + MARGIN)


def outrun(run: CaseRun, bound: CaseRun) -> bool:
    """Return whether a case's measured throughput shows that its bound is wrong (see `outruns`).

    Both cases must have timed launches. Their times are those of comparisons, whereas a figure or table judges the
    rates that it shows.
    """
    mine, most = (1 / statistics.median(one.compared_s for one in each.timings) for each in (run, bound))
    return outruns(run.case, mine, most)
