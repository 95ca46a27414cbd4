"""A value with its confidence interval: arithmetic, and text with the digits that the interval supports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.units import decimals_apart, format_end, format_rounded

WIDEST = 300.0
"""Largest logarithm of a ratio whose exponential is still finite when multiplied by any time."""
_MOST_DIGITS = 4
"""Largest number of digits of a column's largest value, unless that value is a longer whole number.

Smaller values in the column do not add digits.
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its confidence interval, which has no ends if there are too few rounds.

    An example of its text is `0.71 [0.66, 0.76]`. Some methods have a parameter `null`, the value that means no
    difference, such as 1 for a ratio. No end is rounded to it: it gets more decimals, or is `just above 1`.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def around(cls, value: float, half_width: float | None) -> Interval:
        """Return the interval from `value * exp(-half_width)` to `value * exp(half_width)`."""
        if half_width is None:
            return cls(value)
        factor = math.exp(min(half_width, WIDEST))
        return cls(value, value / factor, value * factor)

    @classmethod
    def plus_minus(cls, value: float, half_width: float | None) -> Interval:
        """Return the interval from `value - half_width` to `value + half_width`."""
        return cls(value) if half_width is None else cls(value, value - half_width, value + half_width)

    def scaled(self, factor: float) -> Interval:
        """Return the interval with value and ends multiplied by a positive factor."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Interval(factor * self.value, low, high)

    def reciprocal(self) -> Interval:
        """Return the interval of 1 divided by the value, which must be positive."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Interval(1 / self.value, low, high)

    def exponential(self) -> Interval:
        """Return exp of the value and of the ends, to get a ratio from its logarithm.

        Ends beyond the range of floats are infinite.
        """
        low, high = (None if end is None else _exp(end) for end in (self.low, self.high))
        return Interval(_exp(self.value), low, high)

    @property
    def has_ends(self) -> bool:
        """Return whether both ends are known."""
        return self.low is not None and self.high is not None

    def decimals(self, null: float | None = None) -> int:
        """Return the number of decimals with which the value is worth printing.

        The number follows from the half-width. Without an interval, it gives three significant digits.
        """
        if self.low is not None and self.high is not None and self.high > self.low:
            half = (self.high - self.low) / 2
            exponent = math.floor(math.log10(half))
            # A digit of the half-width, or two if the first is 1 or 2, but at most six digits of the value. If the
            # half-width is smaller than the value, never fewer than zero decimals.
            found = -exponent if half / 10**exponent >= 3 else 1 - exponent
            most = 5 - math.floor(math.log10(abs(self.value))) if self.value else found
            found = min(found, max(most, 0))
            return self.apart(max(found, 0) if half < abs(self.value) else found, null)
        if self.value == 0 or not math.isfinite(self.value):
            return 0
        return 2 - math.floor(math.log10(abs(self.value)))

    def decimals_in_column(self, null: float | None = None) -> int:
        """Return the decimals that a column needs for this value.

        They give two significant digits, or three between 1 and 10, but no more than the interval supports.
        """
        if self.value == 0 or not math.isfinite(self.value):
            return 0
        leading = math.floor(math.log10(abs(self.value)))
        return self.apart(max(0, min(self.decimals(null), 2 if leading == 0 else 1 - leading)), null)

    def apart(self, decimals: int, null: float | None) -> int:
        """Return `decimals`, or a few more if an end would otherwise be rounded to `null` (`units.decimals_apart`)."""
        ends = [end for end in (self.low, self.high) if end is not None]
        return decimals if null is None else decimals_apart(self.value, ends, null, decimals)

    def rounded(self, decimals: int, null: float | None = None) -> tuple[str, str]:
        """Return the value as text, and the ends as text in brackets, both with `decimals`.

        The second text is empty if the ends are unknown.
        """
        if self.low is None or self.high is None:
            return format_rounded(self.value, decimals), ""
        low, high = (
            format_rounded(end, decimals)
            if null is None or end == null or round(end, decimals) != null
            else format_end(end, decimals, (null,))
            for end in (self.low, self.high)
        )
        return format_rounded(self.value, decimals), f"[{low}, {high}]"

    def texts(self, null: float | None = None) -> tuple[str, str]:
        """Return the value, and the ends in brackets, rounded to what the interval supports.

        A value below its half-width has up to two more decimals than its ends.
        """
        decimals = self.decimals(null)
        number, ends = self.rounded(decimals, null)
        if self.low is not None and self.high is not None and self.high - self.low > 2 * abs(self.value) > 0:
            leading = math.floor(math.log10(abs(self.value)))
            number = format_rounded(self.value, max(decimals, min(1 - leading, decimals + 2)))
        return number, ends

    @property
    def number(self) -> str:
        """Return the value as text, without its interval."""
        return self.texts()[0]

    @property
    def brackets(self) -> str:
        """Return the ends as text, such as `[0.66, 0.76]`; empty if the ends are unknown."""
        return self.texts()[1]

    def __str__(self) -> str:
        return " ".join(filter(None, self.texts()))


def decimals_of(column: Sequence[Interval], null: float | None = None) -> int:
    """Return the number of decimals with which all values of a column are printed.

    This is the largest number that any value needs, limited to four digits of the largest value.
    """
    needed = max(one.decimals_in_column(null) for one in column)
    largest = max((abs(one.value) for one in column if math.isfinite(one.value)), default=0.0)
    found = min(needed, max(0, _MOST_DIGITS - 1 - math.floor(math.log10(largest)))) if largest else needed
    return max(one.apart(found, null) for one in column)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
