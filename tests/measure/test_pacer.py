"""Pacing with a clock that only moves by hand: deadlines, lateness and what is learned of oversleeping."""

from __future__ import annotations

import copy

import pytest

from ddpbench.measure.pacer import Pacer


class Host:
    """A clock, and a sleep that wakes `overslept_ns` late."""

    def __init__(self, overslept_ns: int = 0) -> None:
        self.now_ns = 1_000_000_000
        self.overslept_ns = overslept_ns
        self.slept: list[int] = []

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, nanoseconds: int) -> None:
        assert nanoseconds > 0
        self.slept.append(nanoseconds)
        self.now_ns += nanoseconds + self.overslept_ns


def made(overslept_ns: int = 0) -> tuple[Host, Pacer]:
    host = Host(overslept_ns)
    return host, Pacer(host.clock, host.sleep, active=True)


def test_moments_are_absolute_so_that_work_in_between_is_absorbed() -> None:
    host, pacer = made()
    run = pacer.begin()
    host.now_ns += 300_000  # building the graph
    run.until(1_000_000)
    assert host.slept == [700_000]
    host.now_ns += 250_000  # between forward and backward
    run.until(1_500_000)
    assert host.slept == [700_000, 250_000]
    assert host.now_ns == 1_000_000_000 + 1_500_000
    pacer.updated(77)
    pacer.end_step()
    assert pacer.take() == ((0,), 77)


def test_a_step_may_have_many_updates_or_none() -> None:
    host, pacer = made()
    for own in (30, 50):
        update = pacer.begin()
        host.now_ns += 1_000_000 + own
        update.end(1_000_000, lambda: None)
        pacer.updated(own)
    pacer.end_step()
    pacer.begin().until(500_000)
    pacer.end_step()
    assert pacer.take() == ((50, 0), 40)  # the first step's worst; the mean of both updates
    pacer.end_step()
    assert pacer.take() == ((0,), 0)


def test_a_moment_that_is_past_is_not_waited_for_and_noted_as_late() -> None:
    host, pacer = made()
    run = pacer.begin()
    host.now_ns += 1_200_000
    run.until(1_000_000)
    run.until(1_150_000)  # late too, by less
    host.now_ns += 100_000
    run.until(2_000_000)
    assert host.slept == [700_000]
    pacer.updated(0)
    pacer.end_step()
    second = pacer.begin()
    second.until(500_000)
    pacer.updated(0)
    pacer.end_step()
    assert pacer.take()[0] == (200_000, 0)  # each step's worst; the second was in time
    assert pacer.take() == ((), 0)


def test_times_are_scaled_and_grains_with_them() -> None:
    host, pacer = made()
    run = pacer.begin(scale=10.0)
    run.until(100_000, grain_ns=10_000)
    assert host.slept == [1_000_000]
    run.until(109_000, grain_ns=10_000)  # 90 µs ahead, and up to 100 µs early is allowed
    assert host.slept == [1_000_000]
    run.until(111_000, grain_ns=10_000)
    assert host.slept == [1_000_000, 110_000]


def test_oversleeping_is_learned_and_taken_off() -> None:
    host, pacer = made(overslept_ns=40_000)
    for _ in range(60):
        pacer.begin().until(1_000_000)
        pacer.updated(0)
        pacer.end_step()
    late, _ = pacer.take()
    # An eighth of what is left is learned each time.
    assert late[:3] == (40_000, 35_000, 30_625)
    assert max(late[-10:]) < 100
    assert host.slept[-1] == pytest.approx(960_000, abs=100)


def test_a_sleeper_stirs_shortly_before_a_phase_ends() -> None:
    host, pacer = made()
    stirred: list[int] = []

    def wake_early() -> None:
        stirred.append(host.now_ns)
        host.now_ns += 120_000

    run = pacer.begin(scale=2.0)
    run.until(1_000_000)
    run.end(3_000_000, wake_early)
    assert host.slept == [2_000_000, 3_600_000, 280_000]
    assert stirred == [1_000_000_000 + 5_600_000]
    assert host.now_ns == 1_000_000_000 + 6_000_000
    run.end(3_250_000, wake_early)  # too near for it
    assert len(stirred) == 1
    assert host.slept[-1] == 500_000


def test_sleeps_of_another_length_are_learned_apart_and_an_interruption_teaches_little() -> None:
    host, pacer = made(overslept_ns=40_000)
    for _ in range(80):
        pacer.begin().until(1_000_000)
    host.overslept_ns = 300_000
    for _ in range(200):
        pacer.begin().until(16_000_000)
    host.overslept_ns = 40_000
    pacer.updated(0)
    pacer.end_step()
    pacer.begin().until(1_000_000)
    pacer.updated(0)
    pacer.end_step()
    assert pacer.take()[0][1] < 50  # what long sleeps taught is not subtracted from a short one
    host.overslept_ns = 9_000_000
    pacer.begin().until(1_000_000)
    host.overslept_ns = 40_000
    before = host.now_ns
    pacer.begin().until(1_000_000)
    assert before + 995_000 <= host.now_ns < before + 1_000_000  # 5 µs early, not 9 ms


def test_a_pass_that_waited_for_others_goes_on_from_there() -> None:
    host, pacer = made()
    run = pacer.begin(scale=2.0)
    run.until(1_000_000)
    host.now_ns += 5_000_000  # for the slowest replica
    run.resume(1_000_000)
    run.until(1_500_000)
    assert host.slept == [2_000_000, 1_000_000]
    pacer.updated(0)
    pacer.end_step()
    assert pacer.take()[0] == (0,)


def test_passes_of_one_step_are_one_step() -> None:
    host, pacer = made()
    first, second = pacer.begin(), pacer.begin()
    host.now_ns += 30_000
    first.until(20_000)
    second.until(25_000)
    pacer.updated(3)
    pacer.end_step()
    assert pacer.take() == ((10_000,), 3)


def test_a_pacer_that_is_off_waits_for_nothing_and_notes_nothing() -> None:
    host = Host()
    pacer = Pacer(host.clock, host.sleep)
    run = pacer.begin()
    run.until(10**12)
    run.resume(10**12)
    pacer.updated(5)
    pacer.end_step()
    assert host.slept == []
    assert pacer.take() == ((), 0)


def test_updates_are_averaged() -> None:
    _, pacer = made()
    for own in (10, 20, 60):
        pacer.updated(own)
        pacer.end_step()
    assert pacer.take() == ((0, 0, 0), 30)


def test_copies_of_a_model_share_their_ranks_pacer() -> None:
    _, pacer = made()
    assert copy.deepcopy([pacer])[0] is pacer


@pytest.mark.parametrize("offset_ms", [2, 20])
def test_the_real_clock_is_never_early(offset_ms: int) -> None:
    pacer = Pacer(active=True)
    start = pacer.now()
    run = pacer.begin()
    run.until(offset_ms * 1e6)
    # The first sleep has nothing learned to subtract.
    assert pacer.now() - start >= offset_ms * 1_000_000
