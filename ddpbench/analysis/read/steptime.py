"""A launch's step time from its ranks' blocks: the period of the steady state, on one host and on many.

Each rank has a rate: the samples of its steps divided by the time of these steps on its own clock. The job's rate is
the sum over ranks, and the step time is the samples of a job's step divided by the job's rate:

    rate = sum over ranks of samples_r / time_r        step time = samples of a step / rate

**Any constant phase cancels.** A rank that keeps step with a period T and a phase d_r ends its step j at j T + d_r on
any clock. Its k steps take (k T + d_r) - d_r = k T: neither the phase nor the clock's zero is included. With a share
s_r of a step's samples its rate is s_r / T, and the step time is (sum of s_r) / (sum of s_r / T) = T.

**Jitter averages out.** If the steps end at j T + d_r + e_j, time_r is k T + e_k - e_0, whose mean is k T. Its
reciprocal is too high by the variance of (e_k - e_0) / (k T). Times are summed over all blocks before the division, so
with K steps in B blocks the error is 2 B (sd of e / (K T))^2. For example, it is 0.0025 % for a jitter of 5 % of T in
two blocks of 10 steps.

**Ranks that do not keep step** (`async_server`, `independent`) all have k steps in a block, and the slow ones run with
less contention once the fast ones are done. So a rank's step counts only if the rank began it before the fastest rank
was done. These are the first m_r of its k steps. The last of them is the first step that ends at or after the time that
the fastest rank took. Each rank's time starts with its own block. m_r is a stopping time, so by Wald's identity the
mean of time_r is T_r times the mean of m_r, without partial steps and without bias. Ranks in step have m_r = k.

A rank without samples, such as a parameter server, has no rate and does not shorten the others' time. `data_parallel`
is one rank that takes the samples of all its replicas.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddpbench.analysis.statistics.timings import Timing


class BlockTimes(NamedTuple):
    """Times of a rank's block of steps on the rank's own clock, and its numbers of steps and samples."""

    length_ns: int
    steps: int
    samples: int
    step_ns: Sequence[int] = ()
    """Times of single steps; empty if unknown, in which case all steps count."""
    group: int = 0
    """Index of the group of launches with which the block alternated; only rank 0 knows it."""


def time_blocks(number: int, ranks: Sequence[Mapping[int, BlockTimes]]) -> Timing | None:
    """Return a launch's timing from each rank's blocks of one phase, by index (see the module's docstring).

    `steps` and `samples` are totals, and `time_s` is their time at the job's rate. None if no block is recorded by
    every rank, or no rank has samples.
    """
    shared = set.intersection(*(set(blocks) for blocks in ranks)) if ranks else set()
    trainers = [
        [blocks[index] for index in sorted(shared)]
        for blocks in ranks
        if any(blocks[index].samples > 0 for index in shared)
    ]
    if not trainers:
        return None
    spent_ns, taken = [0] * len(trainers), [0.0] * len(trainers)
    steps = samples = 0
    for parts in zip(*trainers, strict=True):
        shortest_ns = min(part.length_ns for part in parts)
        for rank, part in enumerate(parts):
            counted, time_ns = _until(part, shortest_ns)
            spent_ns[rank] += time_ns
            taken[rank] += part.samples * counted / part.steps if part.steps else 0.0
        steps += parts[0].steps
        samples += sum(part.samples for part in parts)
    if steps <= 0 or samples <= 0 or min(spent_ns) <= 0:
        return None
    rate = sum(count / time_ns for count, time_ns in zip(taken, spent_ns, strict=True))
    return Timing(round=number, time_s=samples / rate / 1e9, steps=steps, samples=samples)


def _until(part: BlockTimes, moment_ns: int) -> tuple[int, int]:
    """Return the number of steps begun before a moment, and the end of the last of them (ns from the block's start)."""
    whole = len(part.step_ns) == part.steps and part.steps > 0
    if not whole or part.length_ns - part.step_ns[-1] < moment_ns:
        return part.steps, part.length_ns
    for count, end_ns in enumerate(itertools.accumulate(part.step_ns), start=1):
        if end_ns >= moment_ns:
            return count, end_ns
    return part.steps, part.length_ns
