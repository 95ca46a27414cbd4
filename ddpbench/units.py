"""Parse and format seconds, bit rates, shares and points in time; format bytes and other numbers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ddpbench.text_safety import shortened

_NUMBER = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*$")
_LONGEST = 64
"""Most characters of a duration or a rate, because matching a longer text would take long."""
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}


def utc_now() -> str:
    """Return the present time as records have it, in UTC with seconds: `2025-01-31T12:00:00+00:00`.

    `datetime.isoformat` makes the interpreter retain a string per call, so a long sweep's memory would grow.
    """
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())


def utc_of(text: object) -> datetime | None:
    """Return a time from a record, in UTC; None if `text` is not a time or has no time zone."""
    try:
        moment = datetime.fromisoformat(str(text))
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (
        ValueError,
        OverflowError,
    ):  # in UTC the time would be before the first possible year, or after the last
        return None


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a setting, declared in its `Annotated` type for `docs/settings.md`, without effect on validation."""

    name: str
    """The unit's symbol; `1` for a ratio."""
    type: str = ""
    """Word for the values that the setting's validator parses beyond its annotated type: `duration`, `rate`."""
    allowed: str = ""
    """Words for the values that the setting accepts, if a validator checks them."""


def parse_seconds(value: str | float) -> float:
    """Return seconds from a number of seconds or a text such as `"10 min"`.

    Raises:
        ValueError: the text has no number, or a unit other than ns, us, ms, s, min, h.
    """
    if not isinstance(value, str):
        return float(value)
    match = _NUMBER.match(value) if len(value) <= _LONGEST else None
    if match is None or match[2] not in _SECONDS:
        units = ", ".join(_SECONDS)
        raise ValueError(
            f"invalid duration {shortened(value)}: write a number and one of {units}, such as '10 min'"
        )
    return float(match[1]) * _SECONDS[match[2]]


def parse_share(text: str) -> float:
    """Return the fraction in a text such as `3%` or `0.03`.

    Raises:
        ValueError: the text is not a fraction of at least 0 and below 1.
    """
    number, percent = (text[:-1], True) if text.endswith("%") else (text, False)
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ValueError(f"{text!r}: give a share such as 3% or 0.03, below 100%")
    return value


def format_seconds(seconds: float) -> str:
    """Return a duration in suitable units, with three significant digits below 100 s: `"3.21 ms"`, `"2 min 5 s"`."""
    if seconds >= 100:
        whole = round(seconds)
        hours, rest = divmod(whole, 3600)
        minutes, left = divmod(rest, 60)
        if hours:
            return f"{hours} h {minutes} min"
        return f"{minutes} min {left} s" if left else f"{minutes} min"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        shown = f"{seconds / scale:.3g}"
        if float(shown) >= 1:  # after rounding: 0.9996 s is 1 s, not 1e+03 ms
            return f"{shown} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds > 0 else "0 s"


def format_about(seconds: float) -> str:
    """Return a duration coarsely rounded up, in a form that `parse_seconds` reads: `"50 s"`, `"4 min"`, `"2.5 h"`."""
    if seconds <= 90:
        return f"{10 * math.ceil(seconds / 10)} s"
    if seconds <= 90 * 60:
        return f"{math.ceil(seconds / 60)} min"
    return f"{math.ceil(2 * seconds / 3600) / 2:g} h"


def format_number(value: float) -> str:
    """Return a number with three significant digits, four from 1,000 on, and no exponent: `"0.123"`, `"12,350"`."""
    if round(abs(value)) >= 1000:
        digits = len(str(round(abs(value)))) - 4
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def format_two_digits(value: float) -> str:
    """Return a number with two significant digits and no exponent: `"0.031"`, `"4"`, `"290"`, `"1,800"`."""
    short = float(f"{value:.2g}")
    return f"{short:,.0f}" if abs(short) >= 10 else f"{short:g}"


def format_two_digits_down(value: float) -> str:
    """Like `format_two_digits`, for a positive lower bound, which is rounded down: `"12"` for 12.9."""
    scale = 10.0 ** (1 - math.floor(math.log10(value)))
    return format_two_digits(math.floor(round(value * scale, 6)) / scale)


def decimals_borne(
    value: float,
    low: float | None = None,
    high: float | None = None,
    *,
    nulls: Sequence[float] = (0.0,),
    most: int = 3,
) -> int:
    """Return the number of decimals for a value and its confidence interval from `low` to `high`.

    Without an interval, a value gets three significant digits. A half-width gets one, or two if it exceeds the value.

    The result is at most `most`, or a few more (`decimals_apart`) to keep an end off `nulls`, which mean "no
    difference". `format_end` handles ends that are even closer.
    """
    if not value or not math.isfinite(value):
        return 0
    three = 2 - math.floor(math.log10(abs(value)))
    if low is None or high is None or not high > low:
        return min(max(three, 0), most)
    half = (high - low) / 2
    of_half = -math.floor(math.log10(half))
    decimals = min(max(of_half, three - 1), three) if half < abs(value) else of_half + 1
    decimals = min(max(decimals, 0), most)
    return max((decimals_apart(value, (low, high), null, decimals) for null in nulls), default=decimals)


def decimals_apart(value: float, ends: Iterable[float], null: float, decimals: int) -> int:
    """Return `decimals`, or a few more if an end of a value's interval would otherwise be rounded to `null`.

    The added decimals give the value at most three significant digits, or its distance from `null` at most two. None
    are added if an end would still be rounded to `null`.
    """
    if not math.isfinite(value):
        return decimals
    apart = [end for end in ends if end != null]
    distance = abs(value - null)
    of_value = 2 - math.floor(math.log10(abs(value))) if value else 0
    of_distance = 1 - math.floor(math.log10(distance)) if distance else 0
    for found in range(decimals, max(of_value, of_distance) + 1):
        if all(round(end, found) != null for end in apart):
            return found
    return decimals


def format_end(end: float, decimals: int, nulls: Sequence[float] = (0.0,), sign: str = "") -> str:
    """Return an end of an interval with `decimals`; `just above 0` if it would otherwise be rounded to 0.

    The same holds for the other values in `nulls`. `sign` is `+` for a difference.
    """
    for null in nulls:
        if end != null and round(end, decimals) == null:
            return f"just {'above' if end > null else 'below'} {null:g}"
    return f"{end:{sign},.{max(decimals, 0)}f}"


def format_rounded(value: float, decimals: int) -> str:
    """Return a number with `decimals` decimals, `"1,234.5"`.

    Negative `decimals` round to tens, hundreds and so on, but never round a number to 0.
    """
    if decimals < 0 and value:
        decimals = max(decimals, -math.floor(math.log10(abs(value))))
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return with_minus(text) if float(text.replace(",", "")) else text.replace("-", "")


def with_minus(number: str) -> str:
    """Return a number's text with hyphens replaced by minus signs."""
    return number.replace("-", "\N{MINUS SIGN}")


def format_at_most(fraction: float) -> str:
    """Return an upper bound in per cent, rounded up, with one decimal below 10 %: `"4.1 %"`, `"17 %"`."""
    digits = 1 if 100 * fraction < 9.95 else 0
    scale = 10**digits
    return f"{math.ceil(round(100 * fraction * scale, 6)) / scale:,.{digits}f} %"


def format_at_least(fraction: float) -> str:
    """Return a lower bound in per cent, rounded down, with one decimal below 10 %: `"4.1 %"`, `"17 %"`."""
    digits = 1 if 100 * fraction < 10 else 0
    scale = 10**digits
    return f"{math.floor(round(100 * fraction * scale, 6)) / scale:,.{digits}f} %"


def format_bytes(count: float) -> str:
    """Return a size in the binary unit that suits it, with three significant digits: `"23.5 GiB"`, `"64 MiB"`."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            shown = count / scale
            return f"{shown:.0f} {unit}" if shown >= 100 else f"{shown:.3g} {unit}"
    return f"{count:.0f} bytes"


def parse_bit_rate(value: str | float) -> float:
    """Return bits per second from a number of bits per second or a text such as `"1 Gbit/s"` or `"100mbit"`.

    Raises:
        ValueError: the text has no number, or a unit other than bit, kbit, Mbit, Gbit, Tbit (each with or
            without /s).
    """
    if not isinstance(value, str):
        return float(value)
    match = _NUMBER.match(value) if len(value) <= _LONGEST else None
    unit = match[2].lower().removesuffix("/s").removesuffix("ps") if match is not None else ""
    if match is None or unit not in _BITS:
        raise ValueError(
            f"invalid rate {shortened(value)}: write a number and one of kbit/s, Mbit/s, Gbit/s, such as '1 Gbit/s'"
        )
    return float(match[1]) * _BITS[unit]


def format_bit_rate(bits_per_second: float) -> str:
    """Return a link's rate in a suitable decimal unit, with up to 12 digits: `"1 Gbit/s"`, `"62.5 Mbit/s"`."""
    number, prefix = in_prefix(bits_per_second)
    return f"{number} {prefix}bit/s"


def in_prefix(value: float) -> tuple[str, str]:
    """Return a value as a number of up to 12 digits and a suitable decimal prefix: `("62.5", "M")`."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.12g}", prefix
    return f"{value:.12g}", ""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun in the right number: `1 launch`, `5 launches`. By default `plural` adds an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def series_of(words: Sequence[str], conjunction: str = "and", *, most: int | None = None) -> str:
    """Return words as a series: `a`, `a and b`, `a, b and c`, and with `most` 1: `a and 2 more`."""
    if most is not None and len(words) > most:
        words = [*words[:most], f"{len(words) - most} more"]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"
