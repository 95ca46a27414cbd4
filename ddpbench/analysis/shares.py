"""Shares of an instrumented step, and of communication, with intervals over launches; and how sentences write them."""

from __future__ import annotations

import math

from ddpbench.analysis.read.overlap import PARTS, Breakdown
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import MARGIN, median_launch
from ddpbench.units import decimals_borne, with_minus


def share_of_step(parts: Breakdown, name: str) -> Interval:
    """Return one of `PARTS` as a share of the step in the median launch, with its 95 % interval."""
    steps = [(one[name], math.fsum(one[part] for part in PARTS)) for one in parts.by_round.values()]
    shares = [part / step for part, step in steps if step > 0]
    return median_launch(shares) if shares else Interval(value=0.0)


def percent_of(found: Interval, sign: str = "", *, bare: bool = False) -> str:
    """Return a fraction as `85 % [78, 92]`, with the digits that its interval bears; `sign` is `+` for a difference.

    An end beside the margin is not rounded to it: `20 % [1.5, 42]`. Where `bare`, the interval is left out.
    """
    value = 100 * found.value
    ends = [None if end is None else 100 * end for end in (found.low, found.high)]
    digits = decimals_borne(value, *ends, most=1)
    low, high = (None if end is None else f"{end:{sign}.{_beside_margin(end, digits)}f}" for end in ends)
    text = f"{value:{sign}.{digits}f} %"
    return with_minus(f"{text} [{low}, {high}]" if low and high and not bare else text)


def _beside_margin(end: float, digits: int) -> int:
    margin = 100 * MARGIN
    while digits < 6 and abs(end) != margin and round(abs(end), digits) == margin:
        digits += 1
    return digits
