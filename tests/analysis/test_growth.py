"""Network times are compared as step times are: within rounds of one session, corrected for all candidates."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.analysis.findings.growth import _judged
from ddpbench.analysis.network import network_time, network_timings
from ddpbench.analysis.statistics.timings import Timing

NOISE = (0.01, -0.02, 0.03, 0.0, -0.01)


def run(log: float = 0.0, *, sessions: str = "aaaaa", own: tuple[float, ...] = NOISE) -> Any:
    """Return network times of e^log seconds with noise in five rounds, and the sessions that ran them."""
    seconds = {number: math.exp(log + each) for number, each in enumerate(own)}
    timings = [
        Timing(round=number, time_s=9.0, steps=3, samples=6, session=session)
        for number, session in enumerate(sessions)
    ]
    return SimpleNamespace(parts=SimpleNamespace(network_s=seconds), timings=timings)


def test_the_ratio_is_of_rounds_that_one_session_ran() -> None:
    steady = (0.0, 0.01, -0.01, 0.0, 0.0)
    judged = _judged([run(), run(0.7, own=steady)])
    assert judged is not None
    assert (judged.verdict, judged.rounds) == ("slower", 5)
    assert judged.ratio.value == pytest.approx(math.exp(0.7 - sum(NOISE) / 5))
    apart = _judged([run(), run(0.7, sessions="aabbb", own=steady)])
    assert apart is not None
    assert apart.verdict == "too few"


def test_the_extremes_of_several_are_held_against_each_other_with_a_correction() -> None:
    """With two series the difference, of p = 0.03, is shown; with the extremes of three it is not."""
    apart = (0.08, 0.02, 0.05, 0.0, 0.07)
    still = (0.0,) * 5
    two = _judged([run(own=still), run(own=apart)])
    three = _judged([run(own=still), run(own=tuple(each / 2 for each in apart)), run(own=apart)])
    assert two is not None
    assert two.verdict == "slower"
    assert three is not None
    assert three.verdict == "unresolved"


def test_a_network_time_is_the_median_over_launches_that_sent_something() -> None:
    one = run(own=(0.0, 0.0, 0.0, 0.0, math.log(2)))
    one.parts.network_s[0] = 0.0
    times = network_timings(one)
    assert [timing.round for timing in times] == [1, 2, 3, 4]
    assert network_time(times).value == pytest.approx(1)
