"""Two sides that were measured at different times: launches' variance, and that from session to session.

How far a machine drifts from one session to another cannot be seen from one session a side. `DRIFT` was recorded on a
machine that did nothing else. Where a side's launches scatter by more within a session, what causes that is taken to
last longer than a session at times: that side's drift is larger then (`resolution.drift_of`). The other side's launches
say nothing of it, however many they are. Sessions that differ by more show it themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from ddpbench.analysis.statistics.resolution import (
    DRIFT,
    Drift,
    Variance,
    added,
    drift_by_launches,
    mean_variance,
)
from ddpbench.analysis.statistics.stats import FEWEST, Comparison, deviation
from ddpbench.analysis.statistics.timings import Timing

_SURE = 0.05
"""Sessions' own scatter counts where it is this improbable for the drift that is expected."""


@dataclass(frozen=True, slots=True)
class Within:
    """A side's launches: the mean of their log times per sample, and what it varies by within sessions."""

    mean: float
    scatter: Variance
    """Of launches."""
    shares: float
    """The sum of the squared shares that sessions have of the launches."""
    launches: int
    session_means: tuple[float, ...]


def across(a: Sequence[Timing], b: Sequence[Timing], drift: float | None = None) -> Comparison:
    """Return new (`b`) against base (`a`), measured at different times.

    A side's variance is that of its launches within sessions over their number, and its drift's times the sum of the
    squared shares that its sessions have of its launches: with equal shares, the drift's over their number
    (`resolution.mean_variance`). Degrees of freedom by Welch and Satterthwaite.

    Args:
        a: launches of the base.
        b: launches of the new side.
        drift: standard deviation of the logarithm of step time from session to session; None: `DRIFT`, or what a
            side's launches or sessions show where that is more.
    """
    sides = within(a), within(b)
    drifts = drifts_of(*sides, drift)
    variances = [
        mean_variance(one.scatter, one.launches, known, one.shares)
        for one, known in zip(sides, drifts, strict=True)
    ]
    both = _joined(variances) if any(one.source == "pooled" for one in drifts) else added(variances)
    rounds = min(len(a), len(b))
    return Comparison(
        log=sides[1].mean - sides[0].mean,
        standard_error=math.sqrt(both.value) if rounds >= FEWEST else None,
        df=both.df,
        rounds=rounds,
        paired=True,  # it is judged: what else differs between sessions is in its variance
    )


def _joined(variances: Sequence[Variance]) -> Variance:
    """Return the sum of variances that one estimate is in: together they are known as well as the worst of them."""
    return Variance(math.fsum(one.value for one in variances), max(1.0, min(one.df for one in variances)))


def drifts_of(a: Within, b: Within, drift: float | None = None) -> tuple[Drift, Drift]:
    """Return the drift of either side: what is given, a standard deviation, or else what they show."""
    if drift is not None:
        return Drift(Variance(drift**2)), Drift(Variance(drift**2))
    return shown_drift(a, b)


def within(timings: Sequence[Timing]) -> Within:
    """Return the mean over launches of the log time per sample, and their variance within sessions."""
    logs: dict[str, list[float]] = {}
    for timing in timings:
        logs.setdefault(timing.session, []).append(math.log(timing.sample_s))
    every = [value for values in logs.values() for value in values]
    count, mean = len(every), math.fsum(every) / len(every)
    means = tuple(math.fsum(values) / len(values) for values in logs.values())
    shares = math.fsum((len(values) / count) ** 2 for values in logs.values())
    df = count - len(logs)
    if df == 0:  # a launch a session: their spread is that of launches, and drift's besides
        spread = deviation(every) ** 2 if count > 1 else 0.0
        return Within(mean, Variance(spread, max(1, count - 1)), shares, count, means)
    squares = math.fsum(
        (value - middle) ** 2 for values, middle in zip(logs.values(), means, strict=True) for value in values
    )
    return Within(mean, Variance(squares / df, df), shares, count, means)


def shown_drift(a: Within, b: Within) -> tuple[Drift, Drift]:
    """Return the drift of either side to reckon with: `DRIFT`, or what launches or sessions make of it; the largest.

    Sessions are few, so that theirs counts only where it is significantly larger. It is a side's own, or that of both
    sides' sessions, of which one side alone may have too few.
    """
    pooled = _between((a, b), pooled=True)

    def largest(one: Within) -> Drift:
        shown = (drift_by_launches(one.scatter), _between((one,), pooled=False), pooled)
        return max((each for each in shown if each is not None), key=lambda each: each.variance.value)

    return largest(a), largest(b)


def _between(sides: Sequence[Within], *, pooled: bool) -> Drift | None:
    """Return the variance between sessions, less launches' part in it; None where it may be that of `DRIFT`."""
    several = [one for one in sides if len(one.session_means) > 1]
    degrees = [len(one.session_means) - 1 for one in several]
    df = sum(degrees)
    if not df:
        return None
    own = math.fsum(
        count * (deviation(one.session_means) ** 2 - one.scatter.value * (count + 1) / one.launches)
        for count, one in zip(degrees, several, strict=True)
    )
    if own / df <= DRIFT**2 * float(special.chdtri(df, _SURE)) / df:
        return None
    return Drift(Variance(own / df, df), "pooled" if pooled else "of_sessions")
