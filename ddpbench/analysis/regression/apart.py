"""Compare two sides that were measured at different times, allowing for drift of the machine between sessions.

One session per side cannot show the drift, so `DRIFT`, recorded on a machine that did nothing else, is assumed. A side
whose launches scatter more has more drift (`resolution.drift_of`), and several sessions may show their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from ddpbench.analysis.statistics.resolution import (
    DRIFT,
    SessionDrift,
    Variance,
    added,
    drift_by_launches,
    mean_variance,
)
from ddpbench.analysis.statistics.stats import FEWEST, Comparison, deviation
from ddpbench.analysis.statistics.timings import Timing

_SURE = 0.05
"""Level of significance at which the scatter between sessions replaces the expected drift."""


@dataclass(frozen=True, slots=True)
class WithinSessions:
    """Mean of a side's log times per sample over its launches, and their variance within sessions."""

    mean: float
    scatter: Variance
    """Variance of launches' log times within sessions."""
    shares: float
    """Sum over sessions of the squared fraction of the launches that belong to the session."""
    launches: int
    session_means: tuple[float, ...]


def across(a: Sequence[Timing], b: Sequence[Timing], drift: float | None = None) -> Comparison:
    """Compare new (`b`) with base (`a`), which were measured at different times.

    A side's variance has two parts (`resolution.mean_variance`). One is the variance of launches within sessions,
    divided by their number. The other is the variance of drift, multiplied by the sum of the sessions' squared shares
    of the launches. If all sessions have equal shares, the variance of drift is thus divided by the number of sessions.
    The degrees of freedom follow from the formula of Welch and Satterthwaite.

    Args:
        a: launches of the base.
        b: launches of the new side.
        drift: standard deviation of the logarithm of step time from session to session. By default `DRIFT`, or the
            drift that a side's launches or sessions show if that is larger.
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
        paired=True,  # so that it is judged: its variance includes differences between sessions
    )


def _joined(variances: Sequence[Variance]) -> Variance:
    """Add variances of one estimate; the sum has the fewest degrees of freedom of them."""
    return Variance(math.fsum(one.value for one in variances), max(1.0, min(one.df for one in variances)))


def drifts_of(
    a: WithinSessions, b: WithinSessions, drift: float | None = None
) -> tuple[SessionDrift, SessionDrift]:
    """Return the drift between sessions of each side: `drift` (a standard deviation), or as launches show it."""
    if drift is not None:
        return SessionDrift(Variance(drift**2)), SessionDrift(Variance(drift**2))
    return shown_drift(a, b)


def within(timings: Sequence[Timing]) -> WithinSessions:
    """Return the mean over launches of the log time per sample, and the launches' variance within sessions."""
    logs: dict[str, list[float]] = {}
    for timing in timings:
        logs.setdefault(timing.session, []).append(math.log(timing.sample_s))
    every = [value for values in logs.values() for value in values]
    count, mean = len(every), math.fsum(every) / len(every)
    means = tuple(math.fsum(values) / len(values) for values in logs.values())
    shares = math.fsum((len(values) / count) ** 2 for values in logs.values())
    df = count - len(logs)
    if df == 0:  # one launch per session: their spread includes launches' and drift's
        spread = deviation(every) ** 2 if count > 1 else 0.0
        return WithinSessions(mean, Variance(spread, max(1, count - 1)), shares, count, means)
    squares = math.fsum(
        (value - middle) ** 2 for values, middle in zip(logs.values(), means, strict=True) for value in values
    )
    return WithinSessions(mean, Variance(squares / df, df), shares, count, means)


def shown_drift(a: WithinSessions, b: WithinSessions) -> tuple[SessionDrift, SessionDrift]:
    """Return the assumed drift of each side: the largest of `DRIFT` and the drifts of its launches and sessions.

    Sessions are few, so their drift counts only if it is significantly larger. It is computed from the side's own
    sessions, and from those of both sides.
    """
    pooled = _between((a, b), pooled=True)

    def largest(one: WithinSessions) -> SessionDrift:
        shown = (drift_by_launches(one.scatter), _between((one,), pooled=False), pooled)
        return max((each for each in shown if each is not None), key=lambda each: each.variance.value)

    return largest(a), largest(b)


def _between(sides: Sequence[WithinSessions], *, pooled: bool) -> SessionDrift | None:
    """Return the variance between sessions beyond that between launches; None if consistent with `DRIFT`."""
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
    return SessionDrift(Variance(own / df, df), "pooled" if pooled else "of_sessions")
