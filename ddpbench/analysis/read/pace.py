"""Accuracy of a replay: whether moments came on time, and whether the host's own work was hidden.

A replay's ranks sleep while the profiled device computes. The host's work for them (the reducer's copies, the update,
sockets) takes equally long at any dilation k, so its share of the cores' time falls as 1/k.

The smallest dilation that hides this work is at least 1, and at least each of

    k · share / MOST_SHARE    the processor time of all ranks is at most half of the cores' time: ranks work at
                              the same moments, when a step's buckets close, and must not queue for cores
    k · own / due             a rank's own update of the parameters fits into the profiled update, whose time is
                              multiplied by k

This is necessary, but may not be sufficient: lateness shows whether moments came on time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpbench.records import Block, Pace

MOST_SHARE = 0.5
"""Largest share of the cores' time with which the ranks' own work still counts as hidden."""
LATE_SHARE = 0.01
"""A launch is flagged if the 95th percentile of its lateness is above this share of the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pacing:
    """Delays of a replay's events in a launch's timed blocks, and the host's own work.

    `lateness_s` has one value per step, that of the most late rank, in virtual time. All other times are the machine's
    own. `cpu_s` is the processor time of all ranks, and `cores_s` the available time of their cores. `optimizer_s` is
    the time of a rank's update per step, and `due_s` its dilated time in the profile. Both are means over ranks, and 0
    if not recorded.
    """

    lateness_s: NDArray[np.float64]
    cpu_s: float
    cores_s: float
    optimizer_s: float
    due_s: float

    @property
    def lateness_p95_s(self) -> float:
        """Return the 95th percentile of the steps' lateness, in seconds."""
        return lateness_p95_s([self])


def pacing(
    blocks: Sequence[Mapping[int, Block]],
    paces: Sequence[Mapping[int, Pace]],
    *,
    cores: int,
    dilation: float,
) -> Pacing | None:
    """Return a launch's pacing from every rank's timed blocks and paces, by block index; None if any rank lacks them.

    `blocks` are in virtual time, as `virtual.nominal` returns them. `cores` is the number of cores that the ranks
    use.
    """
    shared = set.intersection(*(set(found) for found in (*blocks, *paces))) if blocks and paces else set()
    late: list[NDArray[np.int64]] = []
    cpu = wall = 0.0
    for index in sorted(shared):
        of = [own[index] for own in paces]
        counts = {len(pace.lateness_ns) for pace in of}
        if len(counts) == 1 and counts != {0}:
            late.append(np.array([pace.lateness_ns for pace in of], np.int64).max(axis=0))
        cpu += sum(pace.cpu_ns for pace in of)
        ranks = [own[index] for own in blocks]
        # Each rank's processor time is measured over its own block, and ranks may begin and end at different times.
        wall += dilation * sum(block.end_ns - block.start_ns for block in ranks) / len(ranks)
    if not shared or not late or wall <= 0 or not cores:
        return None
    # A worker of an asynchronous server makes no update itself.
    every = [own[index] for own in paces for index in shared if own[index].optimizer_ns]
    count = max(1, len(every))
    return Pacing(
        lateness_s=np.concatenate(late) / 1e9,
        cpu_s=cpu / 1e9,
        cores_s=cores * wall / 1e9,
        optimizer_s=sum(pace.optimizer_ns for pace in every) / count / 1e9,
        due_s=sum(pace.optimizer_due_ns for pace in every) / count / 1e9,
    )


def cpu_share(blocks: Sequence[Mapping[int, Block]], *, dilation: float) -> float | None:
    """Return the processor time of all ranks divided by elapsed time, in the timed blocks that all ranks have.

    Sharing cores cannot cost more than this share of the time, however ranks are pinned. Arguments are those of
    `pacing`. None if processor time was not counted.
    """
    shared = set.intersection(*(set(found) for found in blocks)) if blocks else set()
    every = [own[index] for own in blocks for index in shared]
    counted = [block.cpu_ns for block in every if block.cpu_ns is not None]
    wall = dilation * sum(block.end_ns - block.start_ns for block in every) / max(1, len(blocks))
    return sum(counted) / wall if every and len(counted) == len(every) and wall > 0 else None


def lateness_p95_s(launches: Iterable[Pacing]) -> float:
    """Return the 95th percentile of lateness (seconds) over the steps of all launches."""
    return float(np.percentile(np.concatenate([launch.lateness_s for launch in launches]), 95))


def host_share(launches: Sequence[Pacing]) -> float:
    """Return the share of the cores' available time that all ranks used, over all launches."""
    return sum(launch.cpu_s for launch in launches) / sum(launch.cores_s for launch in launches)


def late_s(launches: Sequence[Pacing]) -> float:
    """Return the mean lateness of steps, in seconds of virtual time.

    A step's lateness is that of its latest moment on its latest rank. This is an upper bound on how much longer the
    step is. Delays of transfers are not included.
    """
    return float(np.concatenate([launch.lateness_s for launch in launches]).mean())


def dilation_needed(dilation: float, launches: Sequence[Pacing]) -> float:
    """Return the smallest dilation that hides the host's own work, from launches that ran with `dilation`.

    It is the median over launches of the formula in the module's docstring, or of its first line without optimizer
    times.
    """
    return statistics.median(_needed(dilation, launch) for launch in launches)


def _needed(dilation: float, launch: Pacing) -> float:
    share = launch.cpu_s / launch.cores_s
    hidden = dilation * launch.optimizer_s / launch.due_s if launch.due_s > 0 else 0.0
    return max(1.0, dilation * share / MOST_SHARE, hidden)
