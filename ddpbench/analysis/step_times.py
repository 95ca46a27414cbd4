"""Times of single steps by rank, and what fills each rank's step: computation, communication, and waiting.

In synchronous training all ranks' steps are equally long, so a slow rank is one with much computation and little
waiting. At most four ranks of a case are included: the first that trains, and those with the least, the median and the
most computation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.results import QUANTILES, RankTimes

MOST_RANKS = 4
"""Maximum number of ranks of a case that are included."""
_COMPUTE = ("forward", "backward", "optimizer", "other_compute")


def rank_times(cases: Sequence[CaseRun]) -> Iterator[RankTimes]:
    """Yield the step times of ranks, ordered by case and rank. Ranks without timed steps are left out.

    Of a case with more than `MOST_RANKS` ranks, only some are included. Failed launches are left out.
    """
    for case in cases:
        steps_ns = _steps_ns(case)
        parts = case.parts.by_rank if case.parts is not None else {}
        roles = _roles(steps_ns, parts)
        for rank in sorted(roles):
            yield _times(case, rank, roles[rank], steps_ns, parts.get(rank))


def _steps_ns(case: CaseRun) -> dict[int, NDArray[np.int64]]:
    """Return each rank's timed steps in all launches (ns), without ranks that have none."""
    found: defaultdict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for launch in case.good:
        start = 0
        for rank, count in launch.step_ranks:
            if count and launch.step_ns is not None:
                found[rank].append(launch.step_ns[start : start + count])
            start += count
    return {rank: np.concatenate(parts) for rank, parts in found.items()}


def _servers(case: CaseRun, steps_ns: Mapping[int, NDArray[np.int64]]) -> tuple[int, ...]:
    processes = max(launch.processes for launch in case.good)
    return tuple(rank for rank in range(processes) if rank not in steps_ns)


def _roles(
    steps_ns: Mapping[int, NDArray[np.int64]], parts: Mapping[int, Mapping[str, float]]
) -> dict[int, str]:
    """Return the ranks to draw with their roles, ordered by computation or, if unknown, by median step."""
    if len(steps_ns) <= MOST_RANKS:
        return dict.fromkeys(steps_ns, "")
    known = parts.keys() >= steps_ns.keys()
    size = {
        rank: sum(parts[rank][name] for name in _COMPUTE) if known else float(np.median(own))
        for rank, own in steps_ns.items()
    }
    ordered = sorted(size, key=lambda rank: (size[rank], rank))
    least, middle, most = (
        ("least computation", "median computation", "most computation")
        if known
        else ("shortest steps", "median steps", "longest steps")
    )
    roles = {ordered[(len(ordered) - 1) // 2]: middle, ordered[0]: least, ordered[-1]: most}
    return roles if min(steps_ns) in roles else {min(steps_ns): "", **roles}


def _times(
    case: CaseRun,
    rank: int,
    role: str,
    steps_ns: Mapping[int, NDArray[np.int64]],
    parts: Mapping[str, float] | None,
) -> RankTimes:
    def part(*names: str) -> float | None:
        return None if parts is None else sum(parts[name] for name in names)

    return RankTimes(
        case_id=case.case_id,
        rank=rank,
        role=role,
        ranks=len(steps_ns),
        launches=len(case.good),
        servers=_servers(case, steps_ns),
        steps=len(steps_ns[rank]),
        quantiles_s=tuple((np.percentile(steps_ns[rank], QUANTILES) / 1e9).tolist()),
        step_s=part("step"),
        compute_s=part(*_COMPUTE),
        exposed_comm_s=part("exposed_comm"),
        exposed_wait_s=part("exposed_wait"),
        data_s=part("data"),
        not_attributed_s=part("not_attributed"),
    )
