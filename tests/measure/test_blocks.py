"""Blocks, warm-up and stopping, exactly, with a clock that only moves by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ddpbench.measure.blocks import (
    IN_TURN,
    MIN_BLOCK_STEPS,
    REPLAYING,
    TRAINING,
    AloneControl,
    Least,
    Stepper,
    run_block,
    timed_blocks,
    warm_up,
)
from ddpbench.records.request import INTERLEAVED_BLOCKS
from tests.fake_clock import FakeClock


class CountingControl(AloneControl):
    """Counts barriers, and lets time pass in them: a block must not contain it."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.barriers = 0

    def agree(self, value: int) -> int:
        self.barriers += 1
        self.clock.advance(1_000_000)
        return value


def stepper(
    durations: Callable[[int], int], samples: int = 4
) -> tuple[Stepper, FakeClock, CountingControl, list[int]]:
    clock = FakeClock(start_ns=17)
    control = CountingControl(clock)
    calls: list[int] = []

    def step() -> None:
        calls.append(len(calls))
        clock.advance(durations(len(calls) - 1))

    return Stepper(step, samples, clock, control), clock, control, calls


def test_a_block_leaves_out_its_barriers_and_the_step_after_the_first() -> None:
    work, _, control, calls = stepper(lambda n: 900 if n == 0 else 100 + n)
    block = run_block(work, 3, 5, "timed")
    assert calls == [0, 1, 2, 3]
    assert control.barriers == 2  # what ranks do after their last step waits until all have made it
    assert block.step_ns == (101, 102, 103)
    assert block.start_ns == 17 + 1_000_000 + 900
    assert block.end_ns - block.start_ns == 306
    assert (block.steps, block.samples, block.index, block.phase) == (3, 12, 5, "timed")


def test_a_blocks_processor_time_is_of_its_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [1_000]
    monkeypatch.setattr("time.process_time_ns", lambda: used[0])

    class Costly(AloneControl):
        def agree(self, value: int) -> int:
            used[0] += 10**6
            return value

    def step() -> None:
        used[0] += 70

    assert run_block(Stepper(step, 4, FakeClock(), Costly()), 3, 0, "timed").cpu_ns == 210


def test_warm_up_ends_when_steps_stop_changing() -> None:
    # 2 ms falling by a tenth per step to 1 ms: from step 10 on steps are alike.
    work, _, _, calls = stepper(lambda n: max(1_000_000, 2_000_000 - 100_000 * n))
    warmup = warm_up(work, lambda: True, measured_s=10.0)
    assert warmup.steady
    assert warmup.steps == len(calls)
    assert warmup.steps > 10
    assert warmup.reason == "a change of over 3 % is ruled out"
    # Four steps, then blocks of 40, until the last half holds none of the first ten.
    assert [len(block) for block in warmup.blocks_ns] == [4, 40, 40]
    assert sum(map(len, warmup.blocks_ns)) + 3 + 1 == warmup.steps  # one before each, and the one until ready


def test_warm_up_that_never_settles_is_flagged_within_a_fifth_of_the_budget() -> None:
    work, _, _, _ = stepper(lambda n: int(1_000_000 * 1.02**n))
    warmup = warm_up(work, lambda: True, measured_s=1.0)
    assert not warmup.steady
    assert warmup.reason == "still changing when time was up"
    # A fifth of a second, and no more than the block under way when it passed (a quarter of that, growing).
    assert 0.2e9 <= warmup.end_ns - warmup.start_ns < 0.4e9


def noisy(spread: float, fall: float, over: int, seed: int) -> Callable[[int], int]:
    """Return steps of 1 ms with noise, which start longer by `fall` and reach 1 ms after `over` steps."""
    rng = random.Random(seed)
    return lambda n: round(1e6 * (1 + fall * max(0.0, 1 - n / over)) * rng.lognormvariate(0, spread))


@pytest.mark.parametrize("least", [TRAINING, REPLAYING], ids=["training", "replaying"])
def test_rates_of_the_warm_up_s_own_verdict(least: Least) -> None:
    # 2 s measured: the share has some 400 steps of 1 ms, and 200 are looked at, which fall by 10 %. Noise of 5 %.
    rate = {}
    for fall in (0.0, 0.2):
        found = []
        for seed in range(150):
            work, _, _, _ = stepper(noisy(0.05, fall, 400, seed))
            found.append(not warm_up(work, lambda: True, measured_s=2.0, least=least).steady)
        rate[fall] = sum(found) / len(found)
    print(rate)
    assert rate[0.0] <= 0.05
    assert rate[0.2] >= 0.8


def test_a_change_that_is_found_keeps_the_warm_up_going_beyond_its_share() -> None:
    # 90 ms per step, 1.5 s measured: three blocks of four take 1.4 s where the share is 0.3 s. A clear fall continues.
    work, _, _, _ = stepper(lambda n: round(90e6 * (1 + 0.3 * max(0.0, 1 - n / 30))))
    warmup = warm_up(work, lambda: True, measured_s=1.5)
    assert warmup.steady
    assert 30 < sum(map(len, warmup.blocks_ns)) <= 60
    noise = random.Random(1)
    work, _, _, _ = stepper(lambda _: round(90e6 * noise.lognormvariate(0, 0.08)))
    warmup = warm_up(work, lambda: True, measured_s=1.5)
    assert (len(warmup.blocks_ns), warmup.steady) == (3, True)
    assert warmup.reason == "no change was found when time was up"


def test_a_replay_warms_up_for_no_longer_than_its_share() -> None:
    noise = random.Random(1)
    work, _, _, _ = stepper(lambda _: round(1e9 * noise.lognormvariate(0, 0.0005)))
    warmup = warm_up(work, lambda: True, measured_s=4.0, least=REPLAYING)
    assert (len(warmup.blocks_ns), warmup.steady) == (3, True)  # as before: three blocks of a step each


def test_warm_up_waits_for_one_time_work() -> None:
    ready: Iterator[bool] = iter([False, False, True])
    work, _, _, calls = stepper(lambda _: 1_000_000)
    warmup = warm_up(work, lambda: next(ready), measured_s=0.01)
    assert warmup.steady
    assert len(calls) == 3 + 3 * (4 + 1)  # until ready, then three blocks of four steps and one before each
    assert warmup.step_ns == 1_000_000


def test_warm_up_says_so_when_one_time_work_never_ends() -> None:
    work, _, _, _ = stepper(lambda _: 1_000)
    warmup = warm_up(work, lambda: False, measured_s=1.0)
    assert not warmup.steady
    assert "one-time work" in warmup.reason


def test_timed_blocks_add_up_to_the_time_asked_for() -> None:
    work, _, _, _ = stepper(lambda _: 1_000_000)
    blocks = list(timed_blocks(work, measured_s=2.0, first_step_ns=1_000_000))
    assert [block.index for block in blocks] == list(range(len(blocks)))
    assert len(blocks) == 8
    total_s = sum(block.end_ns - block.start_ns for block in blocks) / 1e9
    assert total_s == pytest.approx(2.0, abs=0.005)


def test_slow_steps_still_make_blocks_of_ten() -> None:
    work, _, _, _ = stepper(lambda _: 900_000_000)
    blocks = list(timed_blocks(work, measured_s=2.0, first_step_ns=900_000_000))
    assert [block.steps for block in blocks] == [MIN_BLOCK_STEPS]


def test_a_wrong_guess_of_the_step_time_is_corrected() -> None:
    # The warm-up saw steps twenty times as fast: the first block is long, the second not.
    work, _, _, _ = stepper(lambda _: 20_000_000)
    blocks = list(timed_blocks(work, measured_s=2.0, first_step_ns=1_000_000))
    assert blocks[0].steps == 250
    assert len(blocks) == 1  # 5 s are more than were asked for


def test_blocks_grow_again_after_a_guess_that_was_too_slow() -> None:
    # The warm-up saw steps a hundred times as slow, as one-time work makes them look.
    work, _, _, _ = stepper(lambda _: 1_000_000)
    blocks = list(timed_blocks(work, measured_s=2.0, first_step_ns=100_000_000))
    assert blocks[0].steps == MIN_BLOCK_STEPS
    assert blocks[1].steps == 250
    assert len(blocks) <= 9 + 1


def test_a_block_waits_for_its_turn_before_it_begins_and_says_for_how_long() -> None:
    work, clock, _, calls = stepper(lambda _: 100)
    seen: list[tuple[int, int, bool]] = []

    def turn(*, meet: bool) -> int:
        seen.append((len(calls), clock.now(), meet))
        clock.advance(5_000)
        return 5_000

    block = run_block(replace(work, turn=turn), 3, 0, "timed")
    assert seen == [(0, 17, True)]
    assert (block.waited_ns, block.end_ns - block.start_ns, block.step_ns) == (5_000, 300, (100, 100, 100))
    for phase, index in (("warmup", 0), ("timed", 1), ("instrumented", 0)):
        run_block(replace(work, turn=turn), 3, index, phase)
        assert not seen[-1][2]


def test_what_a_warm_up_waits_for_its_turn_is_not_its_share_of_the_time() -> None:
    def steps_of(waits_ns: int) -> tuple[int, int]:
        dice = random.Random(1)
        work, clock, _, _ = stepper(lambda _: round(1e7 * dice.uniform(0.5, 1.5)))

        def turn(*, meet: bool) -> int:
            assert not meet
            clock.advance(waits_ns)
            return waits_ns

        warmup = warm_up(replace(work, turn=turn), lambda: True, measured_s=2.0)
        return warmup.steps, warmup.waited_ns

    steps, waited_ns = steps_of(0)
    assert waited_ns == 0
    again, waited_ns = steps_of(1_000_000_000)  # five times its share, each time
    assert again == steps
    assert waited_ns >= 3e9


@pytest.mark.parametrize(("groups", "count"), [(1, 2), (3, 8)])
def test_a_launch_of_several_groups_goes_on_until_the_last(groups: int, count: int) -> None:
    """Its steps are so long that its time is over among the first group."""
    work, *_ = stepper(lambda _: 300_000_000)
    numbers = iter([0, 0, 0, 0, 0, 1, 1, 2, 2])
    found = list(timed_blocks(replace(work, group=lambda: next(numbers)), 2.0, 3e8, IN_TURN, 24, groups))
    assert [block.group for block in found] == [0, 0, 0, 0, 0, 1, 1, 2][:count]


def test_blocks_in_turn_are_short_and_as_many_as_are_asked_for() -> None:
    for step_ns, fewest, most in ((1_000_000, 23, 25), (30_000_000, 10, 12)):
        work, *_ = stepper(lambda _, step_ns=step_ns: step_ns)
        found = list(timed_blocks(work, 1.0, step_ns, IN_TURN, INTERLEAVED_BLOCKS))
        assert fewest <= len(found) <= most
        assert all(block.steps >= 3 for block in found)
        assert sum(block.end_ns - block.start_ns for block in found) == pytest.approx(1e9, rel=0.05)
