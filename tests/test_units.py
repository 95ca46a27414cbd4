"""Durations and rates as people write and read them."""

from __future__ import annotations

import pytest

from ddpbench.units import format_bytes, format_number, format_seconds, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10 min", 600), ("2s", 2), ("1.5 h", 5400), ("60 ms", 0.06), ("3e2 us", 3e-4), (7, 7), (0.5, 0.5)],
)
def test_durations_are_read(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "ten minutes", "5", "5 minutes", "-1 s", "1 s 2"])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as '10 min'"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.21e-3, "3.21 ms"),
        (59.96, "60 s"),
        (0.9996, "1 s"),
        (0.99951e-3, "1 ms"),
        (0.999e-3, "999 µs"),
        (125, "2 min 5 s"),
        (600, "10 min"),
        (7384, "2 h 3 min"),
    ],
)
def test_durations_are_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_rates_are_written() -> None:
    assert [format_number(r) for r in (3.14159, 82.35, 12345.6, 1234567)] == [
        "3.14",
        "82.3",
        "12,350",
        "1,235,000",
    ]


def test_no_rate_is_written_with_an_exponent() -> None:
    assert [format_number(r) for r in (99.96, 999.4, 999.5, 999.96, 9999.6, 0.5)] == [
        *("100", "999", "1,000", "1,000", "10,000", "0.5")
    ]


def test_sizes_are_written() -> None:
    sizes = (0, 1023, 1024, 64 * 2**20, 23.54 * 2**30, 252 * 2**30, 3 * 2**40)
    assert [format_bytes(size) for size in sizes] == [
        *("0 bytes", "1023 bytes", "1 KiB", "64 MiB", "23.5 GiB", "252 GiB", "3 TiB")
    ]
