"""Shares of an instrumented step, and of communication, with intervals over launches; and how sentences write them."""

from __future__ import annotations

from ddpbench.analysis.read.overlap import PARTS, Breakdown
from ddpbench.analysis.statistics.stats import Interval, share
from ddpbench.units import decimals_borne


def share_of_step(parts: Breakdown, name: str) -> Interval:
    """Return one of `PARTS` as a share of the step; without ends under three launches."""
    value = parts.parts[name] / parts.step_s if parts.step_s > 0 else 0.0
    rounds = list(parts.by_round.values())
    steps = [sum(one[part] for part in PARTS) for one in rounds]
    return _around(value, [one[name] for one in rounds], steps)


def _around(value: float, parts: list[float], wholes: list[float]) -> Interval:
    """Return the value with the ends that the launches give it; a share ends at 0 and at 1."""
    if not wholes or sum(wholes) <= 0:
        return Interval(value=value)
    found = share(parts, wholes)
    if found.low is None or found.high is None:
        return Interval(value=value)
    return Interval(value=value, low=max(found.low, 0.0), high=min(found.high, 1.0))


def percent_of(found: Interval, sign: str = "") -> str:
    """Return a fraction as `85 % [78, 92]`, with the digits that its interval bears; `sign` is `+` for a difference."""
    ends = [None if end is None else 100 * end for end in (found.low, found.high)]
    digits = decimals_borne(100 * found.value, *ends, most=1)
    text, low, high = ("" if one is None else f"{one:{sign}.{digits}f}" for one in (100 * found.value, *ends))
    text = f"{text} % [{low}, {high}]" if low and high else f"{text} %"
    return text.replace("-", "\N{MINUS SIGN}")
