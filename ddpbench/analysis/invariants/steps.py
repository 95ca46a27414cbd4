"""Check times: the parts of a step, instrumented steps compared with timed ones, single steps, and launches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddpbench.analysis.invariants.checked import ROUNDING, Bounded, CheckedCase
from ddpbench.analysis.read.overlap import PARTS
from ddpbench.analysis.statistics.stats import half_width

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun

AGREEMENT = 0.02
"""Instrumented steps agree with timed ones if the interval of their ratio overlaps 1 +- this."""
HARD_AGREEMENT = 0.10
"""Largest deviation of the mean ratio from 1 that counts as agreement, even if the interval is wide."""
CLOCK = 1e-3
"""Relative tolerance between a launch's mean step and its single steps, whose times are rounded."""
NANOSECONDS = 1e-8
"""Tolerance, in seconds, of times that were rounded to nanoseconds and divided."""
_COMPUTED = ("forward", "backward", "optimizer", "other_compute")


def parts_add_up(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the sum of a step's parts in each launch, which must equal the step. Also yield each part.

    No part may be negative.
    """
    parts = case.run.parts
    if parts is None:
        return
    for own, step_s in zip(parts.by_round.values(), parts.steps_s, strict=True):
        slack = ROUNDING * abs(step_s) + NANOSECONDS
        whole = math.fsum(own[name] for name in PARTS)
        what = "the sum of its step's parts"
        yield Bounded(what=what, seen=whole, least=step_s - slack, most=step_s + slack, unit="s")
    for name in PARTS:
        words = name.replace("_", " ")
        yield Bounded(what=f"its time of {words}", seen=parts.parts[name], least=-NANOSECONDS, unit="s")


def communication_within(case: CheckedCase) -> Iterable[Bounded]:
    """Yield communication and its parts, which are bounded by each other, by the step and by computation."""
    parts = case.run.parts
    if parts is None or not parts.has_transfers:
        return
    slack = ROUNDING * parts.step_s + NANOSECONDS
    computed = parts.interval(*_COMPUTED).value
    for what, seen, most in (
        ("its exposed communication", parts.exposed_s, parts.comm_s),
        ("its exposed communication", parts.exposed_s, parts.step_s),
        ("its communication", parts.comm_s, parts.step_s),
        ("its overlapped communication", parts.overlapped_s, parts.comm_s),
        ("its overlapped communication", parts.overlapped_s, computed),
        ("its wait for ranks", parts.wait_s, parts.step_s),
    ):
        yield Bounded(what=what, seen=seen, least=-NANOSECONDS, most=most + slack, unit="s")


def instrumented_as_timed(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the geometric mean over launches of the ratio of instrumented to timed step time, which must be close to 1.

    The rule is broken if the entire 95 % interval is outside 1 +- `AGREEMENT`, or the mean outside 1 +-
    `HARD_AGREEMENT`.
    """
    if (found := instrumented_over_timed(case.run)) is not None:
        yield found


def instrumented_over_timed(run: CaseRun) -> Bounded | None:
    """Return the ratio of instrumented to timed step time with its bounds; None if nothing was instrumented."""
    logs = run.instrumented_over_timed
    if not logs:
        return None
    half, hard = half_width(logs), math.log1p(HARD_AGREEMENT)
    reach = hard if half is None else min(hard, math.log1p(AGREEMENT) + half)
    return Bounded(
        what="an instrumented step over a timed one",
        seen=math.exp(math.fsum(logs) / len(logs)),
        least=math.exp(-reach) * (1 - ROUNDING),
        most=math.exp(reach) * (1 + ROUNDING),
    )


def instrumented_may_differ(case: CheckedCase) -> float | None:
    """Return the largest fraction by which an instrumented step may differ from a timed one, by the ratio's interval.

    None if the ratio has no interval.
    """
    logs = case.run.instrumented_over_timed
    half = half_width(logs)
    return None if half is None else math.expm1(abs(math.fsum(logs) / len(logs)) + half)


def single_steps(case: CheckedCase) -> Iterable[Bounded]:
    """Yield each launch's mean step, with its shortest and longest single step as bounds, and a check of their number.

    Steps of all ranks are counted, so their number must be a multiple of the timed steps.
    """
    for launch in case.run.good:
        timing, steps = launch.timing, launch.step_ns
        if timing is None or steps is None or not len(steps):
            continue
        yield Bounded(
            what="single steps beyond a whole number per timed step",
            seen=len(steps) % timing.steps,
            most=0,
            round=launch.round,
        )
        yield Bounded(
            what="its mean step",
            seen=timing.step_s,
            least=float(steps.min()) / 1e9 * (1 - CLOCK),
            most=float(steps.max()) / 1e9 * (1 + CLOCK),
            unit="s",
            round=launch.round,
        )


def time_spent(case: CheckedCase) -> Iterable[Bounded]:
    """Yield two times: timed steps take at most the launch's measured time, which is at most the launch's wall time.

    All times are on the machine's clock, and so not divided by a dilation.
    """
    for launch in case.run.good:
        timing = launch.timing
        if timing is None or launch.measured_s <= 0 or launch.wall_s <= 0:
            continue
        yield Bounded(
            what="the time of its timed steps",
            seen=timing.time_s * case.run.case.dilation,
            most=launch.measured_s * (1 + CLOCK),
            unit="s",
            round=launch.round,
        )
        yield Bounded(
            what="the time of its warm-up and steps",
            seen=launch.measured_s,
            most=launch.wall_s * (1 + CLOCK),
            unit="s",
            round=launch.round,
        )
