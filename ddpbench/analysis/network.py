"""Communication over emulated links, case by case, and what the algorithm's formula says of it.

A case's network time is how long a step's transfers were under way on any rank (`Breakdown.network_s`): one mean a
round, t-intervals over rounds. The formula is given the gradients' bytes, the rate of the link that limits it times
the share that payload gets (`formulas.PAYLOAD`), and no latency: α = 0. It holds for ranks that have a node each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ddpbench.analysis.findings import BOUNDS
from ddpbench.analysis.formulas import PAYLOAD, TIMES, busiest_rank_bytes, bytes_to_aggregate, lower_bound_s
from ddpbench.analysis.labels import links_of
from ddpbench.analysis.launches import CaseRun
from ddpbench.analysis.stats import Interval, half_width
from ddpbench.spec import Case, Links

COLUMNS = (
    *("case_id", "network_s", "network_ci_low_s", "network_ci_high_s", "rounds"),
    *("formula", "formula_s", "bound_s", "gradient_bytes", "sent_bytes", "formula_bytes"),
)


def network_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """One row a case that exchanges gradients over emulated links and was instrumented; seconds.

    `formula` names the textbook's algorithm and `formula_s` its time; empty and NaN where there is none. `bound_s` is
    the least that any algorithm needs at that rate. `sent_bytes` is what the rank that sent most handed to the
    network, counted, and `formula_bytes` what its algorithm should; NaN where the library sent, or ranks share nodes.
    """
    rows: list[tuple[Any, ...]] = []
    for run in cases:
        if run.status != "ok" or run.parts is None or not run.case.fabric or run.case.strategy in BOUNDS:
            continue
        times = [value for value in run.parts.network_s.values() if value > 0]
        if not times:
            continue
        found = Interval.around(
            math.fsum(times) / len(times), half_width([math.log(value) for value in times])
        )
        whole = next((launch.gradient_bytes for launch in run.good if launch.gradient_bytes), None)
        size = bytes_to_aggregate(run.case, whole) if whole else None
        name, formula_s = formula_of(run.case, size)
        bound_s, sent = None, run.parts.sent_bytes
        links, n = links_of(run.case.fabric), run.case.world_size
        if formula_s is not None and size and links is not None:
            bound_s = lower_bound_s(n, size, PAYLOAD * slowest_rate(run.case, links) / 8)
        expected = busiest_rank_bytes(run.case.algorithm, n, size) if size and sent is not None else None
        rows.append(
            (
                *(run.case_id, found.value, found.low, found.high, len(times)),
                *(name, formula_s, bound_s, size, sent, expected),
            )
        )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = [name for name in COLUMNS if name not in ("case_id", "rounds", "formula")]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def formula_of(case: Case, size: float | None) -> tuple[str, float | None]:
    """The textbook's name and time of a case's algorithm for gradients of `size` bytes; none across shared nodes."""
    links = links_of(case.fabric)
    if links is None or not size or case.algorithm not in TIMES or case.nodes != case.world_size:
        return "", None
    name, seconds = TIMES[case.algorithm]
    return name, seconds(case.world_size, size, PAYLOAD * limiting_rate(case, links) / 8, 0.0)


def limiting_rate(case: Case, links: Links) -> float:
    """The rate, bit/s, of the link that limits a case's algorithm.

    A ring goes at its slowest link; between racks each uplink carries what one node's link does. To a master, all
    others' gradients pass its own link, those of the other racks its rack's uplink, and one of them each other link.
    """
    nodes = case.nodes
    if case.algorithm == "master":
        rate = min(links.of_node(0), *((nodes - 1) * links.of_node(node) for node in range(1, nodes)))
        if links.uplink is not None and links.racks > 1:
            beyond = (nodes - nodes / links.racks) / (nodes - 1)  # of what its own link carries
            rate = min(rate, links.uplink / beyond)
        return rate
    return slowest_rate(case, links)


def slowest_rate(case: Case, links: Links) -> float:
    """The rate, bit/s, of the slowest link that every algorithm's gradients must pass."""
    slowest = min(links.of_node(node) for node in range(case.nodes))
    return slowest if links.uplink is None else min(slowest, links.uplink)
