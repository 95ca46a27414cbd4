"""Estimated times of sweeps, compared with those of the kept runs, and the bytes that links are estimated to carry."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from ddpbench.formulas import PAYLOAD
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.runtime.estimate import crowded_ids, launch_s, proof_s, server_starts_s
from ddpbench.runtime.estimated_links import aggregation_s, exchange_s
from ddpbench.runtime.progress import to_prove
from ddpbench.spec import Case, Links
from ddpbench.workloads.work import work_of
from tests.kept import KEPT, REPORTS
from tests.synthetic import case_of

MOST_OFF = 1.5
RATE = 8e6
NODE_S = 8 / (PAYLOAD * RATE)
"""Time in which a node's link carries a byte (s)."""
LOCAL_S = NODE_S / 10
GRADIENTS = 112_560 * 4
"""Bytes of gpt:nano's parameters."""


def rows_of(name: str) -> list[dict[str, str]]:
    with (REPORTS / name / "cases.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def estimated_s(plan: StoredPlan, launches: dict[str, int]) -> float:
    """Return the estimated time of a run with this many launches by case id (s)."""
    crowded = crowded_ids(plan.cases)
    entries = [entry for entry in plan.cases if entry.case.case_id in launches]
    cases = [entry.case for entry in entries]
    return (
        sum(
            launches[case.case_id] * launch_s(case, plan.budget, crowded=case.case_id in crowded)
            for case in cases
        )
        + sum(proof_s(case, crowded=case.case_id in crowded) for case in to_prove(entries))
        + server_starts_s(max(launches.values()), cases, shared=False)
    )


@pytest.mark.parametrize("name", KEPT)
def test_the_estimate_of_a_kept_run_is_near_the_time_that_it_took(name: str) -> None:
    plan = read_plan(RunDir(REPORTS / name))
    launches = {row["case_id"]: int(float(row["launches"])) for row in rows_of(name) if row["launches"]}
    sessions = json.loads((REPORTS / name / "sessions.json").read_text(encoding="utf-8"))["sessions"]
    took_s = sum(session["wall_s"] for session in sessions)
    expected_s = estimated_s(plan, launches)
    assert took_s / MOST_OFF < expected_s < took_s * MOST_OFF


def test_each_case_of_a_kept_run_over_slow_links_that_computes_has_the_step_that_its_links_allow() -> None:
    plan = read_plan(RunDir(REPORTS / "hybrid"))
    measured = {row["case_id"]: float(row["step_time_s"]) for row in rows_of("hybrid")}
    linked = [entry.case for entry in plan.cases if entry.case.fabric]
    assert len(linked) == 5
    for case in linked:
        work = work_of(case)
        assert work is not None
        assert 0.75 < exchange_s(case, work) / measured[case.case_id] < 1.0, case.label


def linked(strategy: str, nodes: int, ranks_per_node: int, **fields: Any) -> Case:
    links = Links(bandwidth=(RATE,), local_bandwidth=10 * RATE)
    shape = {"nodes": nodes, "ranks_per_node": ranks_per_node, "fabric": links.text()}
    return case_of(strategy, nodes * ranks_per_node, **shape | fields)


def sent_s(strategy: str, nodes: int, ranks_per_node: int, **fields: Any) -> float:
    case = linked(strategy, nodes, ranks_per_node, **fields)
    work = work_of(case)
    assert work is not None
    return exchange_s(case, work)


def with_options(**options: Any) -> dict[str, str]:
    return {"options_json": json.dumps(options)}


RING = {"algorithm": "all_reduce"}
ACTIVATIONS = 64 * 48 * 4
"""Bytes of a sample's activations between two layers of gpt:nano: positions, width and bytes of a number."""


@pytest.mark.parametrize(
    ("strategy", "nodes", "ranks", "fields", "wanted_s"),
    [
        ("ddp", 4, 1, RING, 2 * 3 / 4 * GRADIENTS * NODE_S),
        ("ddp", 2, 2, RING, 2 * 3 / 4 * GRADIENTS * NODE_S),  # a ring visits all four ranks
        ("ddp", 1, 4, RING, 2 * 3 / 4 * GRADIENTS * LOCAL_S),
        ("ddp", 4, 1, RING | {"dtype": "float64"}, 2 * 3 / 4 * 2 * GRADIENTS * NODE_S),
        ("ddp", 4, 1, RING | with_options(compression="fp16"), 3 / 4 * GRADIENTS * NODE_S),
        ("master", 4, 1, {"algorithm": "master"}, 2 * 3 * GRADIENTS * NODE_S),
        (
            "master",
            2,
            2,
            {"algorithm": "master"},
            2 * 2 * GRADIENTS * NODE_S,
        ),  # its node mate's stay in the node
        ("post_local_sgd", 4, 1, RING | with_options(period=4), 2 * 3 / 4 * GRADIENTS / 4 * NODE_S),
        ("zero1", 4, 1, {}, 3 * 3 / 4 * GRADIENTS * NODE_S),
        ("fsdp", 4, 1, with_options(replicas=1), 4 * 3 / 4 * GRADIENTS * NODE_S),
        # within a node two all-gathers and an all-reduce of all, then between nodes both ranks' halves
        (
            "fsdp",
            2,
            2,
            with_options(replicas=2),
            4 * 1 / 2 * GRADIENTS * LOCAL_S + 2 * GRADIENTS / 2 * NODE_S,
        ),
        ("pipeline", 4, 1, with_options(replicas=1) | {"global_batch": 32}, 2 * 32 * ACTIVATIONS * NODE_S),
        (
            "pipeline",
            2,
            2,
            with_options(replicas=2) | {"global_batch": 32},
            2 * 16 * ACTIVATIONS * LOCAL_S + 2 * GRADIENTS / 2 * NODE_S,
        ),
        ("independent", 4, 1, {}, 0.0),
        ("mine.py:TopK", 4, 1, {}, 0.0),
    ],
)
def test_what_links_carry_in_a_step_is_as_by_hand(
    strategy: str, nodes: int, ranks: int, fields: dict[str, Any], wanted_s: float
) -> None:
    assert sent_s(strategy, nodes, ranks, **fields) == pytest.approx(wanted_s)


def test_nothing_is_sent_over_links_that_are_the_machines_own_or_by_one_rank() -> None:
    case = case_of("ddp", 4, workload="gpt:nano", algorithm="all_reduce")
    work = work_of(case)
    assert work is not None
    assert exchange_s(case, work) == aggregation_s(case, GRADIENTS) == 0
    assert sent_s("ddp", 1, 1, **RING) == 0


def test_a_faster_link_makes_launches_and_proofs_no_longer_than_computation_does() -> None:
    budget = read_plan(RunDir(REPORTS / "hybrid")).budget
    slow = linked("ddp", 4, 1, **RING)
    fast = linked("ddp", 4, 1, **RING | {"fabric": Links(bandwidth=(1e12,)).text()})
    assert launch_s(slow, budget) > 5 * launch_s(fast, budget)
    assert proof_s(slow) > 5 * proof_s(fast)
