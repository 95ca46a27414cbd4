"""Both sides' cases are matched before anything starts, and sides that cannot be compared are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpbench.errors import RequestError, SideError
from ddpbench.launch.interleave.agreement import Agreement, SidePlan, agree, plan_message, read_plan_message
from ddpbench.launch.interleave.sides import Placed, SideSpec
from ddpbench.spec import Budget, Case, PlannedCase
from tests.synthetic import case_of

DDP, MASTER = case_of(), case_of("master")
SMALL, LARGE = (replace(DDP, bucket_cap_mb=cap) for cap in (1.0, 25.0))
WHICH = "which is compared with which is not known"
MPI = "mpi is not installed here"
Cases = list[Case | tuple[Case, str]]


def planned(cases: Cases, **budget: Any) -> SidePlan:
    """Return a side's plan as the other process reads it; a tuple is a skipped case with the reason."""
    entries = [
        PlannedCase(case=one[0], skip_reason=one[1]) if isinstance(one, tuple) else PlannedCase(case=one)
        for one in cases
    ]
    message = json.loads(json.dumps(plan_message(entries, Budget(**budget).model_dump(mode="json"))))
    found = read_plan_message(message)
    assert found is not None
    return found


def agreed(
    base: Cases,
    new: Cases,
    *,
    base_sets: tuple[str, ...] = (),
    new_sets: tuple[str, ...] = (),
    ref: str = "",
    budgets: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
) -> Agreement:
    specs = SideSpec(name="base", overrides=base_sets, ref=ref), SideSpec(name="new", overrides=new_sets)
    one, other = (
        Placed(spec=spec, python="python", folder=None, commit="", experiment=Path("step.toml"))
        for spec in specs
    )
    return agree((one, other), (planned(base, **budgets[0]), planned(new, **budgets[1])))


STRATEGIES = {"base_sets": ("base.strategy=ddp",), "new_sets": ("base.strategy=master",)}


def test_pairs_have_the_same_place_on_both_sides() -> None:
    """So that launches of a pair alternate, in any order of the sides' own plans."""
    base = [replace(SMALL, world_size=n, ranks_per_node=n) for n in (2, 4, 8)]
    new = [replace(LARGE, world_size=n, ranks_per_node=n) for n in (8, 2, 4)]
    found = agreed(list(base), list(new), base_sets=("bucket_cap_mb=1",), new_sets=("bucket_cap_mb=25",))
    assert [base[a].world_size for a in found.base] == [new[b].world_size for b in found.new] == [2, 4, 8]
    assert found.notes == []
    assert agreed([DDP], [MASTER], **STRATEGIES) == Agreement(base=[0], new=[0], notes=[])


@pytest.mark.parametrize(
    ("base", "new", "sentence"),
    [
        (
            [SMALL, LARGE],
            [MASTER],
            f"{SMALL.label} and {LARGE.label} in base, and {MASTER.label} in new: {WHICH}",
        ),
        (
            [DDP, case_of(world_size=4)],
            [MASTER],
            "ddp · 4 ranks · default buckets: it is in base alone",
        ),
        (
            [DDP],
            [case_of("master", threads_per_rank=2)],
            "ddp · 2 ranks · default buckets: it is in base alone; the other has it with 2 threads per rank",
        ),
        ([DDP], [(MASTER, MPI)], f"master · 2 ranks: new cannot run it: {MPI}"),
        ([(DDP, MPI)], [MASTER], f"ddp · 2 ranks · default buckets: base cannot run it: {MPI}"),
    ],
)  # fmt: skip
def test_settings_that_leave_a_case_without_partner_are_refused(
    base: Cases, new: Cases, sentence: str
) -> None:
    with pytest.raises(RequestError) as caught:
        agreed(base, new, **STRATEGIES)
    text = str(caught.value)
    assert text.startswith(
        "base (set=base.strategy=ddp) and new (set=base.strategy=master) must have the same cases, apart from "
        "base.strategy. Nothing was started:\n"
    )
    assert f"\n  {sentence}\n" in text
    assert text.endswith("give an axis one value with --set, or leave cases out with [[exclude]]")
    assert not isinstance(caught.value, SideError)


def test_many_cases_without_partner_are_counted() -> None:
    base = [case_of(world_size=n) for n in range(2, 22)]
    with pytest.raises(RequestError, match=r"\n  and 11 more\n"):
        agreed(list(base), [case_of("master")], **STRATEGIES)


def test_what_neither_side_runs_needs_no_partner() -> None:
    four = (case_of(world_size=4), MPI), (case_of("master", 4), MPI)
    found = agreed([DDP, four[0]], [MASTER, four[1]], **STRATEGIES)
    assert (found.base, found.new, found.notes) == ([0, 1], [0, 1], [])
    assert agreed([DDP, four[0]], [MASTER], **STRATEGIES).notes == []


def test_commits_with_other_cases_are_compared_in_the_common_ones() -> None:
    found = agreed([MASTER, DDP], [case_of(world_size=4), DDP, (MASTER, MPI)], ref="main")
    assert (found.base, found.new) == ([0, 1], [2, 1, 0])
    assert found.notes == [
        "not compared: ddp · 4 ranks · default buckets: it is in new alone",
        f"not compared: master · 2 ranks: new cannot run it: {MPI}",
    ]


def test_commits_without_a_common_case_are_refused() -> None:
    """The error is one of the base, so that a test suite measures a new test alone."""
    with pytest.raises(SideError, match=r"must have the same cases\. Nothing was started") as caught:
        agreed([SMALL], [LARGE], ref="main")
    assert caught.value.side == "base"
    assert "it is in base alone; the other has it with 25 MiB buckets" in str(caught.value)
    with pytest.raises(SideError, match="new cannot run it: mpi is not"):
        agreed([DDP, (MASTER, MPI)], [(DDP, MPI), MASTER], ref="main")


def test_a_setting_that_the_experiment_has_already_is_no_side() -> None:
    """In a test suite, one of several tests may have it."""
    with pytest.raises(
        SideError, match=r"both sides are the same: with set=base\.strategy=ddp, they have equal"
    ):
        agreed([DDP], [DDP], new_sets=("base.strategy=ddp",))
    assert agreed([DDP], [DDP], new_sets=("base.strategy=ddp",), ref="main").notes == []
    seconds = {"measured_s": 1.0}, {"measured_s": 2.0}
    assert agreed([DDP], [DDP], new_sets=("budget.measured_s=2",), budgets=seconds).base == [0]
    rounds = {"rounds_min": 5}, {"rounds_min": 9}
    with pytest.raises(SideError, match="both sides are the same"):
        agreed([DDP], [DDP], new_sets=("base.strategy=ddp",), budgets=rounds)


def test_a_plan_of_another_version_is_not_understood() -> None:
    message = json.loads(json.dumps(plan_message([PlannedCase(case=DDP)], {})))
    assert read_plan_message(message) is not None
    message["cases"][0]["seed"] = 7  # the id is of other contents
    assert read_plan_message(message) is None
    assert read_plan_message({"event": "planned"}) is None
