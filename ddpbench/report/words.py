"""Numbers, sizes and cases as words: rounding to the interval's precision, names. No statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpbench import units
from ddpbench.units import counted, utc_of

series_of = units.series_of

if TYPE_CHECKING:
    from ddpbench.analysis.statistics.stats import Interval


def headline(text: str) -> str:
    """Return a heading with a capital, unless it begins with a name such as `gpt:nano`."""
    first = text.split(" ", 1)[0].rstrip(":,")
    return text[:1].upper() + text[1:] if first.isalpha() else text


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None
    null: float | None = None
    """No difference, such as a ratio of 1: no end of the interval is rounded to it."""

    @classmethod
    def ratio(cls, interval: Interval) -> Estimate:
        """Return a ratio, such as of two step times."""
        return cls(interval.value, interval.low, interval.high, null=1.0)

    @classmethod
    def of(cls, interval: Interval) -> Estimate:
        """Return any other value."""
        return cls(interval.value, interval.low, interval.high)

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return self.low is not None and self.high is not None

    def scaled(self, factor: float) -> Estimate:
        """Return the same in another unit, such as milliseconds for seconds."""
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Estimate(self.value * factor, low, high)

    @property
    def decimals(self) -> int:
        """Decimals worth printing: those of the interval's half-width, or three significant digits."""
        if self.low is not None and self.high is not None and self.high > self.low:
            half = (self.high - self.low) / 2
            exponent = math.floor(math.log10(half))
            # one digit of the half-width, two where the first is a 1 or a 2; no more than six of the value, and no
            # fewer than its whole number: a table's column has that too
            found = -exponent if half / 10**exponent >= 3 else 1 - exponent
            most = 5 - math.floor(math.log10(abs(self.value))) if self.value else found
            found = min(found, max(most, 0))
            return self.apart(max(found, 0) if half < abs(self.value) else found)
        if self.value == 0 or not math.isfinite(self.value):
            return 0
        return 2 - math.floor(math.log10(abs(self.value)))

    @property
    def number(self) -> str:
        """The value alone, rounded to its precision; where its interval says nothing up to two digits more."""
        decimals = self.decimals
        if self.low is not None and self.high is not None and self.high - self.low > 2 * abs(self.value) > 0:
            leading = math.floor(math.log10(abs(self.value)))
            decimals = max(decimals, min(1 - leading, decimals + 2))
        return _rounded(self.value, decimals)

    @property
    def interval(self) -> str:
        """The interval alone, such as `[0.66, 0.76]`; empty where there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"[{_rounded(self.low, self.decimals)}, {_rounded(self.high, self.decimals)}]"

    @property
    def decimals_in_column(self) -> int:
        """Decimals that a column of such values needs for this one: two digits of it, three between 1 and 10."""
        if self.value == 0 or not math.isfinite(self.value):
            return 0
        leading = math.floor(math.log10(abs(self.value)))
        return self.apart(max(0, min(self.decimals, 2 if leading == 0 else 1 - leading)))

    def apart(self, decimals: int) -> int:
        """Return so many decimals, or as many more, up to a few, as tell the interval's ends from no difference."""
        ends = [end for end in (self.low, self.high) if end is not None and end != self.null]
        for found in range(decimals, _MOST_DECIMALS + 1):
            if all(round(end, found) != self.null for end in ends):
                return found
        return decimals

    def rounded(self, decimals: int) -> tuple[str, str]:
        """Return the value and its interval with so many decimals."""
        if self.low is None or self.high is None:
            return _rounded(self.value, decimals), ""
        return _rounded(
            self.value, decimals
        ), f"[{_rounded(self.low, decimals)}, {_rounded(self.high, decimals)}]"

    def __str__(self) -> str:
        return f"{self.number} {self.interval}".strip()


_MOST_DECIMALS = 4
_MOST_DIGITS = 4
"""Of a column's largest value, unless they are whole ones: what is small beside it does not give it more."""


def decimals_of(column: Sequence[Estimate]) -> int:
    """Return the decimals of all values of a column: what each needs, up to four digits of the largest."""
    needed = max(one.decimals_in_column for one in column)
    largest = max((abs(one.value) for one in column if math.isfinite(one.value)), default=0.0)
    found = min(needed, max(0, _MOST_DIGITS - 1 - math.floor(math.log10(largest)))) if largest else needed
    return max(one.apart(found) for one in column)


def estimate_of(interval: Interval) -> Estimate:
    """Return what the analysis found, to be told in words."""
    return Estimate(interval.value, interval.low, interval.high)


def _rounded(value: float, decimals: int) -> str:
    if decimals < 0 and value:
        # never round a value away: 0 is not what was measured
        decimals = max(decimals, -math.floor(math.log10(abs(value))))
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text.replace(",", "")) else text.replace("-", "")


def number(value: float) -> str:
    """Return a number with three significant digits and thousands separated."""
    return Estimate(value).number


def milliseconds(seconds: float) -> str:
    """Return a time in ms: hundredths below 1 ms, tenths below 100 ms, whole above."""
    value = seconds * 1e3
    return _rounded(value, 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 2)


def percent(fraction: float) -> str:
    """Return a fraction in per cent, one decimal below 10 %."""
    value = fraction * 100
    return f"{_rounded(value, 1 if abs(value) < 10 else 0)} %"


def signed_percent(fraction: float) -> str:
    """Return the same with its sign, `+1.2 %`: of a difference."""
    text = percent(fraction)
    return f"+{text}" if fraction > 0 and text != percent(0.0) else text


def moment(utc: object) -> str:
    """Return an ISO time as `2026-03-04 09:12 UTC`; what is not a time is shown as it is."""
    if not utc:
        return "not recorded"
    found = utc_of(utc)
    return str(utc) if found is None else f"{found:%Y-%m-%d %H:%M} UTC"


def ranks(world_size: int) -> str:
    """`1 rank`, `4 ranks`."""
    return counted(world_size, "rank")


def valued(name: str, value: object) -> str:
    """`DDP 409`; and `DDP on nodes of 1: 409`, so that the two numbers are not read as one."""
    return f"{name}{':' if name[-1:].isdigit() else ''} {value}"


def not_drawn(names: Sequence[str]) -> tuple[str, ...]:
    """Return one sentence on the groups of cases that got no figure; none where all did."""
    if not names:
        return ()
    what = "; ".join(names)
    subject = "One more group of cases is" if len(names) == 1 else f"{len(names)} more groups of cases are"
    return (f"{subject} not drawn, to keep the page readable; the summary table has them: {what}.",)


def rounds_each(counts: Iterable[int]) -> str:
    """`5 rounds each`, or `4 to 5 rounds each` where they differ."""
    found = sorted(set(counts))
    if len(found) < 2:
        return f"{counted(found[0] if found else 0, 'round')} each"
    return f"{found[0]} to {found[-1]} rounds each"


def launches_each(counts: Iterable[int]) -> str:
    """`5 launches each`, or `4 to 5 launches each` where they differ."""
    found = sorted(set(counts))
    if not found:
        return "no launches"
    if len(found) == 1:
        return f"{counted(found[0], 'launch', 'launches')} each"
    return f"{found[0]} to {found[-1]} launches each"
