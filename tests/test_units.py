"""Durations and rates as people write and read them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from ddpbench.units import (
    decimals_borne,
    format_at_least,
    format_at_most,
    format_bytes,
    format_end,
    format_number,
    format_seconds,
    format_two_digits,
    format_two_digits_down,
    parse_seconds,
    series_of,
    utc_now,
)


def test_now_is_that_of_utc_wherever_the_machine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for zone in ("Asia/Tokyo", "America/St_Johns", "UTC"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            now = datetime.fromisoformat(utc_now())
            assert now.utcoffset() == timedelta(0)
            assert abs(datetime.now(UTC) - now) < timedelta(seconds=5)
    finally:
        monkeypatch.undo()
        time.tzset()


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


@pytest.mark.parametrize(
    ("value", "low", "high", "decimals"),
    [
        (15.09, 13.83, 16.46, 0),  # 15 [14, 16]
        (1.61, 1.43, 1.80, 1),
        (8.91, 8.05, 9.86, 1),
        (0.803, 0.716, 0.901, 2),
        (324.4, 323.3, 325.5, 0),
        (20.1, 2.1, 41.2, 0),
        (0.3, -2.0, 2.6, 1),
        (1.6, 1.6, 1.6, 2),  # no more than three digits, however narrow
        (1.66667, 1.66666, 1.66668, 2),
        (2676.0, 2490.0, 2876.0, 0),
        (0.0, 0.0, 0.0, 0),
        (3.14159, None, None, 2),
        (12345.6, None, None, 0),
    ],
)
def test_a_sentence_has_the_digits_that_an_interval_bears(
    value: float, low: float | None, high: float | None, decimals: int
) -> None:
    assert decimals_borne(value, low, high) == decimals


def test_no_end_is_rounded_to_no_difference() -> None:
    """`1.2 [1.0, 1.4]` would say of what was decided that it was not."""
    assert decimals_borne(1.21, 1.02, 1.42, nulls=(0.0, 1.0)) == 2
    assert decimals_borne(20.1, 0.4, 41.2) == 1
    assert decimals_borne(0.05, 0.02, 0.08, most=1) == 2
    assert decimals_borne(3.93, 0.04, 7.96, most=1) == 2
    assert decimals_borne(1.0013, 1.0001, 1.0025, nulls=(1.0,)) == 4  # the distance from 1 has two digits


def test_no_number_has_more_than_three_digits_only_to_keep_an_end_apart() -> None:
    """`11.129 [0.001, 23.496]` would say more of each number than is known."""
    assert decimals_borne(11.129, 0.001, 23.496, most=1) == 0
    assert decimals_borne(1.11129, 1.00001, 1.23496, nulls=(0.0, 1.0)) == 1
    ends = [format_end(*one) for one in ((0.001, 0), (-0.001, 0), (23.496, 0), (0.0, 1), (0.04, 2))]
    assert ends == ["just above 0", "just below 0", "23", "0.0", "0.04"]
    assert format_end(0.99999, 2, (0.0, 1.0)) == "just below 1"
    assert format_end(0.4, 1, sign="+") == "+0.4"


def test_two_digits_have_no_exponent() -> None:
    written = [format_two_digits(value) for value in (0.0309, 0.000123, 0, 4.0, 9.96, 24.4, 294, 1812, 1e7)]
    assert written == ["0.031", "0.00012", "0", "4", "10", "24", "290", "1,800", "10,000,000"]


def test_a_bound_is_rounded_up() -> None:
    assert [format_at_most(one) for one in (0.1616, 0.17, 0.0411, 0.04, 0.0996, 2.0)] == [
        *("17 %", "17 %", "4.2 %", "4.0 %", "10 %", "200 %")
    ]


def test_a_lower_bound_is_rounded_down() -> None:
    assert [format_at_least(one) for one in (0.13862, 0.1399, 0.0862, 0.08, 0.0999, 0.1, 2.0)] == [
        "13 %",
        "13 %",
        "8.6 %",
        "8.0 %",
        "9.9 %",
        "10 %",
        "200 %",
    ]
    assert [format_two_digits_down(one) for one in (12.96, 2.586, 2.5, 0.0319, 199.0)] == [
        "12",
        "2.5",
        "2.5",
        "0.031",
        "190",
    ]


def test_a_series_names_so_many_and_counts_the_others() -> None:
    assert series_of(["a", "b", "c", "d"], most=2) == "a, b and 2 more"
    assert series_of(["a", "b"], most=2) == "a and b"
