"""A value with its confidence interval: arithmetic, and text to the precision that the interval supports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.units import format_rounded

WIDEST = 300.0
"""Largest logarithm of a ratio: its exponential, times any time, is still finite."""
_MOST_DECIMALS = 4
_MOST_DIGITS = 4
"""Most digits of a column's largest value, unless it is a larger whole number: smaller values do not add any."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its confidence interval; the ends are None where there are too few rounds for one.

    Its text is such as `0.71 [0.66, 0.76]`. A method's `null` is the value of no difference, such as a ratio of 1: no
    end is rounded to it.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def around(cls, value: float, half_width: float | None) -> Interval:
        """Return `value * exp(+-half_width)`: the half-width is that of a logarithm."""
        if half_width is None:
            return cls(value)
        factor = math.exp(min(half_width, WIDEST))
        return cls(value, value / factor, value * factor)

    @classmethod
    def plus_minus(cls, value: float, half_width: float | None) -> Interval:
        """Return `value +- half_width`, in the value's own unit."""
        return cls(value) if half_width is None else cls(value, value - half_width, value + half_width)

    def scaled(self, factor: float) -> Interval:
        """Return the interval in another unit, or per rank; the factor is positive."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Interval(factor * self.value, low, high)

    def reciprocal(self) -> Interval:
        """Return the interval of the reciprocal of a positive value."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Interval(1 / self.value, low, high)

    def exponential(self) -> Interval:
        """Return the interval of a ratio whose logarithm this is; ends beyond the range of floats are infinite."""
        low, high = (None if end is None else _exp(end) for end in (self.low, self.high))
        return Interval(_exp(self.value), low, high)

    @property
    def has_ends(self) -> bool:
        """Return whether both ends are known."""
        return self.low is not None and self.high is not None

    def decimals(self, null: float | None = None) -> int:
        """Return the decimals worth printing: those of the half-width, or three significant digits without one."""
        if self.low is not None and self.high is not None and self.high > self.low:
            half = (self.high - self.low) / 2
            exponent = math.floor(math.log10(half))
            # one digit of the half-width, two where the first is a 1 or a 2; no more than six of the value,
            # and no fewer than its whole number, as a table's column has them
            found = -exponent if half / 10**exponent >= 3 else 1 - exponent
            most = 5 - math.floor(math.log10(abs(self.value))) if self.value else found
            found = min(found, max(most, 0))
            return self.apart(max(found, 0) if half < abs(self.value) else found, null)
        if self.value == 0 or not math.isfinite(self.value):
            return 0
        return 2 - math.floor(math.log10(abs(self.value)))

    def decimals_in_column(self, null: float | None = None) -> int:
        """Return the decimals that a column of such values needs for this one: two digits, three between 1 and 10."""
        if self.value == 0 or not math.isfinite(self.value):
            return 0
        leading = math.floor(math.log10(abs(self.value)))
        return self.apart(max(0, min(self.decimals(null), 2 if leading == 0 else 1 - leading)), null)

    def apart(self, decimals: int, null: float | None) -> int:
        """Return `decimals`, or as many more, up to a few, as distinguish the ends from no difference."""
        ends = [end for end in (self.low, self.high) if end is not None and end != null]
        for found in range(decimals, _MOST_DECIMALS + 1):
            if all(round(end, found) != null for end in ends):
                return found
        return decimals

    def rounded(self, decimals: int) -> tuple[str, str]:
        """Return the value and, in brackets, its ends, with `decimals`; an empty second text without ends."""
        if self.low is None or self.high is None:
            return format_rounded(self.value, decimals), ""
        low, high = format_rounded(self.low, decimals), format_rounded(self.high, decimals)
        return format_rounded(self.value, decimals), f"[{low}, {high}]"

    def texts(self, null: float | None = None) -> tuple[str, str]:
        """Return value and ends rounded to their precision; a value whose ends give none has up to two more
        decimals.
        """
        decimals = self.decimals(null)
        number, ends = self.rounded(decimals)
        if self.low is not None and self.high is not None and self.high - self.low > 2 * abs(self.value) > 0:
            leading = math.floor(math.log10(abs(self.value)))
            number = format_rounded(self.value, max(decimals, min(1 - leading, decimals + 2)))
        return number, ends

    @property
    def number(self) -> str:
        """Return the value alone, as text."""
        return self.texts()[0]

    @property
    def brackets(self) -> str:
        """Return its ends alone, such as `[0.66, 0.76]`; empty where there are none."""
        return self.texts()[1]

    def __str__(self) -> str:
        return " ".join(filter(None, self.texts()))


def decimals_of(column: Sequence[Interval], null: float | None = None) -> int:
    """Return the decimals of all values of a column: as many as each needs, up to four digits of the largest."""
    needed = max(one.decimals_in_column(null) for one in column)
    largest = max((abs(one.value) for one in column if math.isfinite(one.value)), default=0.0)
    found = min(needed, max(0, _MOST_DIGITS - 1 - math.floor(math.log10(largest)))) if largest else needed
    return max(one.apart(found, null) for one in column)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
