"""A rank's timing logic, without training: blocks of steps, the end of the warm-up, and when to stop."""

from __future__ import annotations

import itertools
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ddpbench.measure.clock import Clock
from ddpbench.records import Block, Warmup
from ddpbench.trend import TOLERANCE, change_of

MIN_BLOCK_STEPS = 10
"""Fewest steps of a timed block; `IN_TURN` and `REPLAYING` allow fewer."""
BLOCKS_A_LAUNCH = 8
"""Blocks into which a launch's measured time is cut, if steps are fast enough."""
WARMUP_SHARE = 0.2
"""Share of the measured time that the warm-up takes while it is undecided whether step times still change."""
WARMUP_BLOCK_STEPS = 4
"""Fewest steps of a warm-up block."""
WARMUP_BLOCKS = 3
"""Fewest blocks of the warm-up. The last half of its steps is judged, or this number of shortest blocks if that is
more.
"""
MAX_STEPS_UNTIL_READY = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Least:
    """The fewest steps of a block, by phase."""

    warmup: int = WARMUP_BLOCK_STEPS
    persist: int = 4 * MIN_BLOCK_STEPS
    """A warm-up whose step times are found to change continues beyond `WARMUP_SHARE` up to this number of steps."""
    timed: int = MIN_BLOCK_STEPS
    instrumented: int = MIN_BLOCK_STEPS


TRAINING = Least()
IN_TURN = Least(timed=3)
"""Fewest steps per block in a launch that takes turns with another launch.

The shorter the blocks, the closer in time are the blocks that are compared with each other.
"""
REPLAYING = Least(warmup=1, persist=0, timed=4, instrumented=4)
"""Fewest steps per block of a replay: all its steps take the same time, maybe seconds, so four are enough.

A block's time covers whole steps by each rank's own clock, so a short block is as unbiased as a long one.
"""


class Control(Protocol):
    """A channel through which a job's ranks agree on a value, separate from the training's own communication."""

    def agree(self, value: int) -> int:
        """Return rank 0's value, once every rank has called this (a barrier)."""


class AloneControl:
    """The control of a job with one process."""

    def agree(self, value: int) -> int:
        return value


def _nothing() -> None:
    pass


def _at_once(*, meet: bool) -> int:
    return 0


def _first() -> int:
    return 0


class AwaitTurn(Protocol):
    """Makes rank 0, and so all ranks, wait before each block of a launch that alternates with another."""

    def __call__(self, *, meet: bool) -> int:
        """Wait until this job may continue, and return the time waited (ns).

        With `meet`, also wait until the other launch has arrived at the same point.
        """


@dataclass(frozen=True, slots=True)
class Stepper:
    """A rank's training step, the number of its samples, and the clock and control with which it is timed."""

    step: Callable[[], None]
    samples_per_step: int
    clock: Clock
    control: Control
    period: int = 1
    """The number of steps of a block is a multiple of this number.

    If only some steps exchange data, every block thus has the same proportion of steps that do.
    """
    at_edge: Callable[[], None] = _nothing
    """Called right before a block's first moment and right after its last, outside the timed part, to read counters."""
    turn: AwaitTurn = _at_once
    """Called before a block; returns once this job may continue."""
    group: Callable[[], int] = _first
    """Returns the index of the group of launches with which the next block alternates."""


def run_block(
    stepper: Stepper, steps: int, index: int, phase: Literal["warmup", "timed", "instrumented", "evaluation"]
) -> Block:
    """Time a block of `steps` steps, rounded up to full periods. A barrier and an untimed step come first.

    Rank 0's number of steps holds for all ranks. During the block, only the clock is read, once per step.
    """
    waiting_cpu_ns = time.process_time_ns()
    waited_ns = stepper.turn(meet=phase == "timed" and index == 0)
    stepper.clock.anchor()
    steps = stepper.control.agree(math.ceil(steps / stepper.period) * stepper.period)
    waiting_cpu_ns = time.process_time_ns() - waiting_cpu_ns
    step, mark = stepper.step, stepper.clock.mark
    step()
    stepper.at_edge()
    faults, cpu_ns = _minor_faults(), time.process_time_ns()
    marks = [mark()]
    for _ in range(steps):
        step()
        marks.append(mark())
    faults, cpu_ns = _minor_faults() - faults, time.process_time_ns() - cpu_ns
    stepper.at_edge()
    stepper.control.agree(0)  # what comes next must not take a core from a rank still in its last step
    times = stepper.clock.resolve(marks)
    return Block(
        phase=phase,
        index=index,
        steps=steps,
        samples=steps * stepper.samples_per_step,
        start_ns=times[0],
        end_ns=times[-1],
        step_ns=tuple(after - before for before, after in itertools.pairwise(times)),
        minor_faults=faults,
        cpu_ns=cpu_ns,
        waited_ns=waited_ns,
        waiting_cpu_ns=waiting_cpu_ns,
        group=stepper.group(),
    )


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _until_ready(stepper: Stepper, ready: Callable[[], bool]) -> tuple[int, bool]:
    """Step until one-time work is done on all ranks; return the number of steps and whether it is done."""
    steps, control = 1, stepper.control
    is_ready = bool(control.agree(int(ready())))
    while not is_ready and steps < MAX_STEPS_UNTIL_READY:
        stepper.step()
        steps += 1
        is_ready = bool(control.agree(int(ready())))
    return steps, is_ready


def warm_up(
    stepper: Stepper, ready: Callable[[], bool], measured_s: float, least: Least = TRAINING
) -> Warmup:
    """Step until one-time work is done, and then until step times are steady or the warm-up's time is used up.

    After each block from the third on, rank 0 looks at the last half of the steps (`ddpbench.trend`). The warm-up ends
    once a change of more than the tolerance is ruled out. An undecided change prolongs it for `WARMUP_SHARE` of
    `measured_s` after the one-time work, and a shown change at least until `least.persist` steps. `steady` is False if
    a change was found at the end, or if one-time work was not done. The timed steps later decide whether the launch
    itself was steady (`analysis/statistics/steady.py`).
    """
    clock, control = stepper.clock, stepper.control
    start_ns = clock.now()
    stepper.step()
    first_ns = clock.now()
    steps, is_ready = _until_ready(stepper, ready)
    ready_ns = clock.now()
    if not is_ready:
        reason = f"one-time work was not done after {steps} steps"
        return Warmup(
            steps=steps,
            start_ns=start_ns,
            end_ns=ready_ns,
            step_ns=(ready_ns - start_ns) // steps,
            steady=False,
            reason=reason,
            first_ns=first_ns,
        )
    share_ns = WARMUP_SHARE * measured_s * 1e9
    blocks: list[tuple[int, ...]] = []
    waited_ns = 0
    block_steps = least.warmup
    while True:
        block = run_block(stepper, block_steps, len(blocks), "warmup")
        steps += block.steps + 1
        waited_ns += block.waited_ns
        blocks.append(block.step_ns)
        median = statistics.median(block.step_ns)
        if len(blocks) >= WARMUP_BLOCKS:
            times = list(itertools.chain.from_iterable(blocks))
            late = clock.now() - ready_ns - waited_ns >= share_ns
            verdict = control.agree(_verdict(times, late, least))
            if verdict != _GO_ON:
                return Warmup(
                    steps=steps,
                    start_ns=start_ns,
                    end_ns=clock.now(),
                    step_ns=round(median),
                    steady=verdict != _CHANGING,
                    reason=_REASONS[verdict],
                    blocks_ns=tuple(blocks),
                    first_ns=first_ns,
                    waited_ns=waited_ns,
                )
        fitting = share_ns / 4 / max(median, 1.0)
        block_steps = max(least.warmup, min(4 * MIN_BLOCK_STEPS, int(fitting)))


_GO_ON, _STEADY, _UNDECIDED, _CHANGING = range(4)
_REASONS = {
    _STEADY: f"a change of over {100 * TOLERANCE:g} % is ruled out",
    _UNDECIDED: "no change was found when time was up",
    _CHANGING: "still changing when time was up",
}


def _verdict(times: Sequence[int], late: bool, least: Least) -> int:
    """Return `_GO_ON` or the outcome of the warm-up; `late` if its time is used up."""
    change = change_of(times[-max(WARMUP_BLOCKS * least.warmup, len(times) // 2) :])
    if change is None or change.excluded:
        return _STEADY
    if change.found:
        return _CHANGING if late and len(times) >= least.persist else _GO_ON
    return _UNDECIDED if late else _GO_ON


def timed_blocks(
    stepper: Stepper,
    measured_s: float,
    first_step_ns: float,
    least: Least = TRAINING,
    blocks: int = BLOCKS_A_LAUNCH,
    groups: int = 1,
) -> Iterator[Block]:
    """Yield timed blocks until their times sum to `measured_s`; rank 0 decides for all ranks, between blocks.

    `first_step_ns` is a step's time from the warm-up. A block takes about `measured_s` / `blocks`. A launch that
    alternates with several `groups`, one after another, continues until the last, however long its steps are.
    """
    wanted = math.ceil(measured_s * 1e9 / blocks / max(first_step_ns, 1.0))
    steps = max(least.timed, wanted)
    spent_ns, index, reached = 0, 0, 0
    while True:
        block = run_block(stepper, steps, index, "timed")
        yield block
        spent_ns += block.end_ns - block.start_ns
        index += 1
        rest_ns = measured_s * 1e9 - spent_ns
        step_ns = (block.end_ns - block.start_ns) / block.steps
        steps = max(least.timed, math.ceil(min(rest_ns, measured_s * 1e9 / blocks) / max(step_ns, 1.0)))
        # Stop where the sum is nearest to the time asked for, within half a block.
        reached = max(reached, block.group)
        if stepper.control.agree(int(rest_ns < step_ns * least.timed / 2 and reached >= groups - 1)):
            return
