"""Page faults, in which launches of one case may differ by chance.

glibc's malloc may return the top of its heap to the kernel in every step, which then pays for page faults. Whether it
does is decided at a process's start. Ranks use the user's own allocator, so the effect is reported, not prevented.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ddpbench.analysis.names import Names
from ddpbench.records import Block

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun

FAULT_S = 1e-6
"""Approximate cost of a fault, seconds, for entering and leaving the kernel and zeroing a page.

It is half of this on bare metal, and several times this in some virtual machines.
"""
MOST = 0.02
"""Share of the step time above which a difference between launches of one case is reported."""


def faults_per_step(ranks: Sequence[Mapping[int, Block]]) -> float | None:
    """Return the minor faults per step of the rank with the most faults, from each rank's timed blocks.

    None if they were not counted.
    """
    counted: list[float] = []
    for blocks in ranks:
        known = [block for block in blocks.values() if block.minor_faults is not None]
        if steps := sum(block.steps for block in known):
            counted.append(sum(block.minor_faults or 0 for block in known) / steps)
    return max(counted, default=None)


def fault_sentences(cases: Iterable[CaseRun], names: Names) -> Iterable[str]:
    """Yield a sentence on cases whose launches differ in page faults so much that times show it."""
    unlike: list[tuple[float, float, CaseRun]] = []
    for case in cases:
        found = [
            (launch.faults_per_step, launch.timing.step_s)
            for launch in case.good
            if launch.faults_per_step is not None and launch.timing is not None
        ]
        if not found or case.case.compute != "real":
            continue
        fewest, most = (end(faults for faults, _ in found) for end in (min, max))
        if (most - fewest) * FAULT_S > MOST * min(step_s for _, step_s in found):
            unlike.append((fewest, most, case))
    if unlike:
        fewest, most, _ = max(unlike, key=lambda one: one[1] - one[0])
        alike = [case for _, _, case in unlike]
        yield (
            f"Page faults differ between launches of {names.within(alike)} ({fewest:,.0f} to {most:,.0f} a "
            "step at worst): malloc gave memory back to the kernel in some and kept it in others, as it may from one "
            "start of your training to the next, and their times differ by that. In the environment "
            "MALLOC_TRIM_THRESHOLD_=1000000000, MALLOC_TOP_PAD_=100000000 and MALLOC_MMAP_MAX_=0 hold both alike, and "
            "change what is measured"
            f"{names.listed(alike)}."
        )
