"""Format numbers, times and counts as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpbench import units
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.units import counted, format_rounded, utc_of

series_of = units.series_of


def number(value: float) -> str:
    """Return a number as text with three significant digits and thousands separators."""
    return Interval(value).number


def milliseconds(seconds: float) -> str:
    """Return a time as text in ms, with two decimals below 1 ms, one below 100 ms, and none above."""
    value = seconds * 1e3
    return format_rounded(value, 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 2)


def percent(fraction: float) -> str:
    """Return a fraction as text in per cent, with one decimal below 10 %."""
    value = fraction * 100
    return f"{format_rounded(value, 1 if abs(value) < 10 else 0)} %"


def signed_percent(fraction: float) -> str:
    """Return a difference as text in per cent, with a plus sign if it is positive: `+1.2 %`."""
    text = percent(fraction)
    return f"+{text}" if fraction > 0 and text != percent(0.0) else text


def moment(utc: object) -> str:
    """Return an ISO time as `2026-03-04 09:12 UTC`, `not recorded` if it is empty, or any other text unchanged."""
    if not utc:
        return "not recorded"
    time = utc_of(utc)
    return str(utc) if time is None else f"{time:%Y-%m-%d %H:%M} UTC"


def ranks(world_size: int) -> str:
    """Return `1 rank`, `4 ranks` and so on."""
    return counted(world_size, "rank")


def valued(name: str, value: object) -> str:
    """Return a name and a value, with a colon if the name ends in a digit: `DDP 409`, `DDP on nodes of 1: 409`."""
    return f"{name}{':' if name[-1:].isdigit() else ''} {value}"


def not_drawn(names: Sequence[str]) -> tuple[str, ...]:
    """Return one sentence that names the groups without a figure; empty without such groups."""
    if not names:
        return ()
    what = "; ".join(names)
    subject = "One more group of cases is" if len(names) == 1 else f"{len(names)} more groups of cases are"
    return (f"{subject} not drawn, to keep the page readable; the summary table has them: {what}.",)


def rounds_each(counts: Iterable[int]) -> str:
    """Return `5 rounds each`, or `4 to 5 rounds each` if the counts differ."""
    distinct = sorted(set(counts))
    if len(distinct) < 2:
        return f"{counted(distinct[0] if distinct else 0, 'round')} each"
    return f"{distinct[0]} to {distinct[-1]} rounds each"


def launches_each(counts: Iterable[int]) -> str:
    """Return `5 launches each`, or `4 to 5 launches each` if the counts differ."""
    distinct = sorted(set(counts))
    if not distinct:
        return "no launches"
    if len(distinct) == 1:
        return f"{counted(distinct[0], 'launch', 'launches')} each"
    return f"{distinct[0]} to {distinct[-1]} launches each"
