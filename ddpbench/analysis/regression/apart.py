"""Two sides that were measured at different times: launches' variance, and that from session to session.

How far a machine drifts from one session to another cannot be seen from one session a side. `DRIFT` was recorded on a
machine that did nothing else. Where launches scatter by more within a session, what causes that is taken to last longer
than a session at times: the drift is larger then (`resolution.drift_of`). Sessions of a side that differ by more show
it themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from ddpbench.analysis.statistics.resolution import DRIFT, drift_of
from ddpbench.analysis.statistics.stats import FEWEST, Comparison, Timing, deviation

_KNOWN = 1e9
"""Degrees of freedom of a variance that is not estimated."""
_SURE = 0.05
"""Sessions' own scatter counts where it is this improbable for the drift that is expected."""


@dataclass(frozen=True, slots=True)
class Within:
    """A side's launches: the mean of their log times per sample, and what it varies by within sessions."""

    mean: float
    variance: float
    """Of the mean."""
    df: int
    shares: float
    """The sum of the squared shares that sessions have of the launches."""
    launches: int
    session_means: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """The variance of the logarithm of step time from session to session, and how well it is known."""

    variance: float
    df: float = _KNOWN


def across(a: Sequence[Timing], b: Sequence[Timing], drift: float | None = None) -> Comparison:
    """Return new (`b`) against base (`a`), measured at different times.

    A side's variance is that of its launches within sessions over their number, and the drift's times the sum of the
    squared shares that its sessions have of its launches: with equal shares, the drift's over their number. Degrees of
    freedom by Welch and Satterthwaite.

    Args:
        a: launches of the base.
        b: launches of the new side.
        drift: standard deviation of the logarithm of step time from session to session; None: `DRIFT`, or what the
            launches show where that is more.
    """
    sides = within(a), within(b)
    between = shown_drift(*sides) if drift is None else Drift(drift**2)
    drifts = between.variance * sum(one.shares for one in sides)
    variance = sum(one.variance for one in sides) + drifts
    spread = sum(one.variance**2 / one.df for one in sides if one.df) + drifts**2 / between.df
    rounds = min(len(a), len(b))
    return Comparison(
        log=sides[1].mean - sides[0].mean,
        standard_error=math.sqrt(variance) if rounds >= FEWEST else None,
        df=max(1.0, min(variance**2 / spread if spread else _KNOWN, _KNOWN)),
        rounds=rounds,
        paired=True,  # it is judged: what else differs between sessions is in its variance
    )


def within(timings: Sequence[Timing]) -> Within:
    """Return the mean over launches of the log time per sample, and its variance from within sessions."""
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
        return Within(mean, spread / count, max(1, count - 1), shares, count, means)
    squares = math.fsum(
        (value - middle) ** 2 for values, middle in zip(logs.values(), means, strict=True) for value in values
    )
    return Within(mean, squares / df / count, df, shares, count, means)


def shown_drift(a: Within, b: Within) -> Drift:
    """Return the drift to reckon with: `DRIFT`, what launches' scatter makes of it, or that of sessions; the largest.

    Sessions are few, so that theirs counts only where it is significantly larger, and less what launches' gives.
    """
    found = Drift(DRIFT**2)
    df = a.df + b.df
    launches = (a.variance * a.launches * a.df + b.variance * b.launches * b.df) / df
    if launches > found.variance:
        found = Drift(drift_of(math.sqrt(launches)) ** 2, df)
    between = len(a.session_means) + len(b.session_means) - 2
    if not between:
        return found
    sides = [deviation(one.session_means) for one in (a, b) if len(one.session_means) > 1]
    sizes = [len(one.session_means) for one in (a, b) if len(one.session_means) > 1]
    sessions = math.fsum(s**2 * (k - 1) for s, k in zip(sides, sizes, strict=True)) / between
    own = sessions - launches * sum(map(len, (a.session_means, b.session_means))) / (a.launches + b.launches)
    expected = DRIFT**2 * float(special.chdtri(between, _SURE)) / between
    return Drift(own, between) if own > max(expected, found.variance) else found
