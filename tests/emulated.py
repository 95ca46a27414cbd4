"""Synthetic runs over emulated links, replayed, dilated and shrunk, in the way of `tests.synthetic`.

python -m tests.emulated OUT_DIR
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddpbench.records import RunDir
from ddpbench.spec import Case, Links, PlannedCase
from tests.synthetic import Model, RankLaunch, case_of, write_run

SLOW_NODE = "1 Gbit/s, 1 Gbit/s, 1 Gbit/s, 100 Mbit/s"
GRADIENT_BYTES = 25_600_000


def dilated(what: RankLaunch, k: int, m: int = 1) -> RankLaunch:
    """Return a launch as its rank would write it with time dilated by k and gradients shrunk by m.

    Processor time and the optimizer's own stay the same; the profiled optimizer time is slowed like all else.
    """

    def every(blocks: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[k * ns for ns in block] for block in blocks]

    steps = [
        (
            k * start,
            k * end,
            [(name, k * begin, k * until) for name, begin, until in spans],
            [(bucket, op, size // m, k * begin, k * until) for bucket, op, size, begin, until in transfers],
        )
        for start, end, spans, transfers in what.steps
    ]
    late, cpu, own, due = what.pace or (0, 0, 0, 0)
    node, sent, received = what.traffic or (0, 0, 0)
    return replace(
        what,
        blocks=every(what.blocks),
        steps=steps,
        start_ns=k * what.start_ns,
        gradient_bytes=what.gradient_bytes // m,
        buckets=None if what.buckets is None else [size // m for size in what.buckets],
        evaluation=every(what.evaluation),
        traffic=(node, sent // m, received // m) if what.traffic else None,
        pace=(k * late, cpu, own, k * due) if what.pace else None,
    )


@dataclass(frozen=True, kw_only=True)
class Emulated(Model):
    """Ranks that sleep, and links: a ring at its slowest, a master at its own. Latency makes small buckets
    expensive."""

    forward_s: float = 0.030
    backward_s: float = 0.060
    optimizer_s: float = 0.003
    data_s: float = 0.0
    noise: float = 0.004
    latency_s: float = 0.0004
    by_cap: bool = True
    lateness_s: float = 0.0002
    host_s: float = 0.012
    """Processor time of a rank per step, on the host's clock."""

    def buckets(self, case: Case) -> list[int]:
        """Return the sizes into which the cap divides the gradients' bytes; the default's first is 1 MiB."""
        if case.schedule != "overlapped":
            return [GRADIENT_BYTES, GRADIENT_BYTES]
        if case.bucket_cap_mb == "default":
            return [2**20, GRADIENT_BYTES - 2**20]
        size = int(float(case.bucket_cap_mb or 1) * 2**20)
        return [size] * (GRADIENT_BYTES // size) + [GRADIENT_BYTES % size] * (GRADIENT_BYTES % size > 0)

    def parts(self, case: Case, factor: float) -> dict[str, int]:
        """Return the nanoseconds of each part of a step."""
        parts = {"forward": self.forward_s, "backward": self.backward_s, "optimizer": self.optimizer_s}
        n = case.world_size
        if case.fabric and n > 1 and case.nodes > 1:
            links = Links.parse(case.fabric)
            slowest = links.slowest(case.nodes) / 8
            steps = 2 * (n - 1) * self.latency_s * len(self.buckets(case))
            if case.strategy == "master":
                parts["comm"] = 2.1 * (n - case.ranks_per_node) * GRADIENT_BYTES / slowest
            else:
                parts["comm"] = 1.08 * 2 * (n - 1) / n * GRADIENT_BYTES / slowest + steps
        elif n > 1:
            parts["comm"] = 0.02
        if case.strategy in ("single", "independent"):
            parts.pop("comm", None)
        return {name: int(value * factor * 1e9) for name, value in parts.items()}

    def recorded(self, case: Case, rank: int, what: RankLaunch) -> RankLaunch:
        """Return the traffic of each node's first rank and the replay's pace, dilated and shrunk as in the case."""
        n, a_node = case.world_size, case.ranks_per_node
        what = replace(what, gradient_bytes=GRADIENT_BYTES, cores=(rank % 2,))
        if case.fabric and case.nodes > 1 and rank % a_node == 0:
            sent = int(1.03 * 2 * (n - 1) / n * GRADIENT_BYTES)
            if case.strategy == "master":
                sent = int(1.03 * (n - a_node if rank == 0 else a_node) * GRADIENT_BYTES)
            what = replace(what, traffic=(rank // a_node, sent, sent))
        if case.compute != "real":
            own = int(2e6)
            due = int(self.optimizer_s * 1e9)
            what = replace(what, pace=(int(self.lateness_s * 1e9), int(self.host_s * 1e9), own, due))
        k = int(case.dilation)
        return dilated(what, k, case.shrink) if k > 1 or case.shrink > 1 else what


def emulated_case(strategy: str, world_size: int, fabric: str = "1 Gbit/s", **changes: Any) -> Case:
    """Return a case as a fabric's experiment has it: a node for each rank, without links if none are used."""
    used = strategy in ("ddp", "master") and world_size > 1
    values: dict[str, Any] = {"workload": "replay:resnet50", "compute": "replayed"}
    values |= {"fabric": fabric if used else ""}
    values |= {"nodes": world_size if used else 1, "ranks_per_node": 1 if used else world_size}
    return case_of(strategy, world_size, **(values | changes))


def emulated_cases(**common: Any) -> list[PlannedCase]:
    """Return cases with which every section of emulated runs has its figure."""
    cases = [emulated_case("single", 1, **common), emulated_case("ddp", 1, **common)]
    cases += [emulated_case("independent", world, **common) for world in (2, 4, 8)]
    cases += [emulated_case(one, world, **common) for one in ("ddp", "master") for world in (2, 4, 8, 16)]
    for rate in ("100 Mbit/s", "300 Mbit/s", "1 Gbit/s", "3 Gbit/s", "10 Gbit/s"):
        cases += [
            emulated_case("ddp", 4, rate, bucket_cap_mb=cap, **common) for cap in ("default", 1.0, 5.0, 25.0)
        ]
    cases += [emulated_case("ddp", 8, nodes=nodes, ranks_per_node=8 // nodes, **common) for nodes in (2, 1)]
    cases.append(emulated_case("ddp", 4, SLOW_NODE, **common))
    cases.append(emulated_case("ddp", 4, "1 Gbit/s; 2 racks, uplink 500 Mbit/s", **common))
    planned = {case.case_id: PlannedCase(case=case) for case in cases}
    return list(planned.values())


def write_emulated(path: Path | str, *, rounds: int = 5, **common: Any) -> RunDir:
    """Write a run of `emulated_cases` and its `fabric.json`."""
    cases = emulated_cases(**common)
    run = write_run(path, cases, rounds=rounds, blocks=2, steps=4, model=Emulated())
    made = {
        (one.case.fabric, one.case.nodes, one.case.ranks_per_node): one for one in cases if one.case.fabric
    }
    fabrics = [
        {
            "links": case.case.fabric,
            "nodes": case.case.nodes,
            "ranks_per_node": case.case.ranks_per_node,
            "dilation": case.case.dilation,
            "shrink": case.case.shrink,
            "privileged": True,
            "kernel": "6.1.0",
            "asked_bit_per_s": [1e8] * case.case.nodes,
            "reached_bit_per_s": [0.99e8] * (case.case.nodes - 1) + [0.978e8],
            "dropped": 0,
        }
        for case in made.values()
    ]
    run.fabrics.write_text(json.dumps(fabrics), encoding="utf-8")
    return run


if __name__ == "__main__":
    write_emulated(sys.argv[1], dilation=10.0, shrink=4)
