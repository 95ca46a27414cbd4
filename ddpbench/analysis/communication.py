"""How long a transfer of so many bytes takes beside computation, and what bus bandwidth that is.

A transfer takes from its last rank's start until the last rank has its result. busbw is nccl-tests' measure
(doc/PERFORMANCE.md there): bytes over time, times a factor by which the number says how busy the links are,
whatever the operation and the number of ranks. The rounds are the replicates: a round gives one mean time for
each size, over all its transfers of that size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from ddpbench.analysis.findings import BOUNDS, grouped, layouts_of, panel_key, variant_key
from ddpbench.analysis.launches import CaseRun
from ddpbench.analysis.stats import Interval, half_width
from ddpbench.analysis.transfers import Moved
from ddpbench.formulas import TIMES

MIN_SIZES = 3
"""With fewer sizes of one operation on one number of ranks a curve says nothing about latency or bandwidth."""
COLUMNS = (
    *("group", "case_id", "op", "world_size", "bytes"),
    *("time_s", "time_ci_low_s", "time_ci_high_s", "busbw", "busbw_ci_low", "busbw_ci_high"),
    *("factor", "rounds", "transfers"),
)
FACTORS: Mapping[str, tuple[str, Callable[[int], float]]] = {
    **dict.fromkeys(TIMES, ("2(n-1)/n", lambda n: 2 * (n - 1) / n)),  # every way to reduce to all
    "reduce_scatter": ("(n-1)/n", lambda n: (n - 1) / n),
    "all_gather": ("(n-1)/n", lambda n: (n - 1) / n),
    "broadcast": ("1", lambda n: 1.0),
    "reduce": ("1", lambda n: 1.0),
    "gather": ("n-1, of one rank's bytes", lambda n: n - 1.0),
    "scatter": ("n-1, of one rank's bytes", lambda n: n - 1.0),
    "send": ("1", lambda n: 1.0),  # from one rank to another, whatever their number
}
"""What bytes over time is multiplied by, in words and as a function of the number of ranks. nccl-tests counts
the whole buffer of a gather or a scatter, n times one rank's, and multiplies by (n-1)/n: the same number."""


def transfers_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """One row for each strategy, operation, number of ranks and size; busbw in bytes/s.

    `group` numbers the strategies by how many sizes they have, most first; one that has not `MIN_SIZES` of an
    operation on one number of ranks is left out, and so is what ran oversubscribed. `case_id` is one of the
    row's cases. busbw is NaN where nccl-tests knows no factor for the operation.
    """
    able = [
        run
        for run in cases
        if run.status == "ok"
        and run.parts is not None
        and run.case.world_size > 1
        and run.case.strategy not in BOUNDS
        and not run.planned.oversubscribed
    ]
    found: list[list[dict[str, Any]]] = []
    nodes = layouts_of(able)
    for members in grouped(able, lambda run: (panel_key(run), variant_key(run), nodes[run.case_id])).values():
        rows = [
            row
            for world, at in grouped(members, lambda run: (run.case.world_size,)).items()
            for row in _rows(world[0], at)
        ]
        if any(_sizes(rows, row) >= MIN_SIZES for row in rows):
            found.append([row for row in rows if _sizes(rows, row) >= 2])
    found.sort(key=lambda rows: -len({row["bytes"] for row in rows}))
    numbered = [row | {"group": number} for number, rows in enumerate(found) for row in rows]
    return pd.DataFrame(numbered, columns=list(COLUMNS))


def _sizes(rows: Sequence[Mapping[str, Any]], of: Mapping[str, Any]) -> int:
    """How many sizes of a row's operation there are on its number of ranks."""
    return sum(row["op"] == of["op"] and row["world_size"] == of["world_size"] for row in rows)


def _rows(world: int, members: Sequence[CaseRun]) -> list[dict[str, Any]]:
    moved: dict[tuple[str, int], dict[int, Moved]] = {}
    case_of: dict[tuple[str, int], str] = {}
    for run in members:
        assert run.parts is not None
        for number, sizes in run.parts.transfers.items():
            for key, part in sizes.items():
                total = moved.setdefault(key, {}).setdefault(number, Moved())
                total.count += part.count
                total.time_ns += part.time_ns
                case_of.setdefault(key, run.case_id)
    rows = []
    for key in sorted(moved):
        op, size = key
        rounds = [one for one in moved[key].values() if one.time_ns > 0]
        count = sum(one.count for one in rounds)
        if not rounds or not size:
            continue
        times = [one.time_ns / one.count / 1e9 for one in rounds]
        mean = sum(one.time_ns for one in rounds) / count / 1e9
        time = Interval.around(mean, half_width([math.log(value) for value in times]))
        factor = FACTORS[op][1](world) if op in FACTORS else math.nan
        rows.append(
            {
                "case_id": case_of[key],
                "op": op,
                "world_size": world,
                "bytes": size,
                "time_s": time.value,
                "time_ci_low_s": time.low,
                "time_ci_high_s": time.high,
                "busbw": factor * size / time.value,
                "busbw_ci_low": None if time.high is None else factor * size / time.high,
                "busbw_ci_high": None if time.low is None else factor * size / time.low,
                "factor": factor,
                "rounds": len(rounds),
                "transfers": count,
            }
        )
    return rows
