"""A profile's arithmetic by hand, and a replay's profile compared with the profile that it replays."""

from __future__ import annotations

import math

import pytest

from ddpbench.worker.rank.profiling import Spans, interval, ready_moments


def test_the_notes_cost_is_taken_off_each_moment_in_the_order_in_which_they_were_made() -> None:
    # Two gradients; a noted backward takes 0.2 ms longer, so that each note costs 0.1 ms.
    spans = Spans(
        step_s=[],
        forward_s=[],
        backward_s=[0.010, 0.012],
        optimizer_s=[],
        noted_backward_s=[0.0112, 0.0112],
        ready=[[(1, 0.0041), (0, 0.0112)], [(0, 0.0051), (1, 0.0112)]],
    )
    first, second = ready_moments(spans, 2)
    assert first == pytest.approx([0.0112 - 0.0002, 0.0051 - 0.0001])
    assert second == pytest.approx([0.0041 - 0.0001, 0.0112 - 0.0002])


def test_an_interval_is_students() -> None:
    seconds = interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 * 1.0 / math.sqrt(3)  # t(2, 0.975) from a table, a deviation of 1
    assert seconds.mean == 2.0
    assert seconds.low == max(0.0, 2.0 - half)
    assert seconds.high == pytest.approx(2.0 + half)
    assert interval([5.0]).low is None
    assert interval([1.0, 1.2], end=1.05).mean == 1.05
