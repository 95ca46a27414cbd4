"""Comparability of cases: every field has a role, and an axis over any field gives distinguishable cases."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from ddpbench.naming import Namer, columns
from ddpbench.spec import Case, grouping
from ddpbench.spec.case import _ADDED_LATER
from ddpbench.spec.grouping import FACETS, check_complete
from ddpbench.spec.settings import Base

BASE = Case(
    workload="mlp",
    strategy="ddp",
    algorithm="all_reduce",
    schedule="overlapped",
    world_size=2,
    ranks_per_node=2,
)
AXES: dict[str, Any] = {
    "workload": "cnn",
    "strategy": "master",
    "algorithm": "ring",
    "schedule": "after_backward",
    "options_json": '{"accumulate": 2}',
    "workload_options_json": '{"width": 64}',
    "backend": "nccl",
    "device": "cuda",
    "launcher": "slurm",
    "world_size": 4,
    "nodes": 2,
    "ranks_per_node": 2,
    "threads_per_rank": 2,
    "loader_workers": 2,
    "bucket_cap_mb": 5.0,
    "local_batch": 16,
    "global_batch": 64,
    "dtype": "float64",
    "fabric": "1 Gbit/s",
    "compute": "replayed",
    "dilation": 2.0,
    "precision": "bf16",
    "data": "memory",
    "checkpoint_dir": "/scratch",
    "shrink": 4,
    "env_json": '{"NCCL_ALGO": "Ring"}',
    "recovery": "SIGKILL",
    "snapshot_every": 20,
    "agents": 2,
    "collective_timeout": 30.0,
}
"""Another value of each field that an experiment may vary; `another` finds values for new fields."""


def another(name: str, default: Any) -> Any:
    """Return a value of a new field other than its default: another choice, the opposite, or one more."""
    hint = get_type_hints(Case)[name]
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != default)
    return not default if hint is bool else f"another {name}" if hint is str else default + 1


AXES |= {
    one.name: another(one.name, one.default)
    for one in fields(Case)
    if one.name not in AXES and FACETS[one.name].role != "bookkeeping"
}
FOLLOWS = {
    "global_batch": {"scaling": "strong"},
    "ranks_per_node": {"nodes": 2, "ranks_per_node": 1},
    "checkpoint_dir": {"checkpoint": True},
}
"""Values of other fields without which a field has no meaning."""

ALSO = {"nodes": {"ranks_per_node": 1}, "ranks_per_node": {"nodes": 1}}
"""Fields that change with a field: for example, the same ranks on other nodes."""
WITH = {
    "scaling": ("local_batch", "global_batch"),  # the batch that is held fixed
    "nodes": ("ranks_per_node",),
    "ranks_per_node": ("nodes",),
}
"""Fields that also differ if a field does."""


def pair(name: str) -> tuple[Case, Case]:
    """Return two cases that differ in one field."""
    base = replace(BASE, **FOLLOWS.get(name, {}))
    return base, replace(base, **{name: AXES[name]}, **ALSO.get(name, {}))


def test_every_field_has_a_role() -> None:
    assert {field.name for field in fields(Case)} == set(FACETS)
    assert set(AXES) == {name for name, facet in FACETS.items() if facet.role != "bookkeeping"}


def test_a_new_field_without_a_role_fails() -> None:
    names = [field.name for field in fields(Case)]
    with pytest.raises(TypeError, match="differ in network_topology"):
        check_complete([*names, "network_topology"], FACETS, "both")
    with pytest.raises(TypeError, match="differ in seed"):
        check_complete([name for name in names if name != "seed"], FACETS, "both")


def test_a_field_is_a_setting_or_follows_from_others() -> None:
    """A new field that no experiment can set would be an axis without a key."""
    follow = {"experiment", "options_json", "workload_options_json", "ranks_per_node", "fabric", "compute"}
    follow |= {"env_json"}  # `[env]`
    follow |= {"strategy_traits"}  # traits that a user's strategy states
    assert {field.name for field in fields(Case)} - set(Base.model_fields) == follow


def test_a_field_added_later_has_the_default_of_its_setting() -> None:
    """Otherwise cases that do not set it would have other ids than in old runs."""
    defaults = {one.name: one.default for one in fields(Case) if one.name in {*_ADDED_LATER} - {"env_json"}}
    assert defaults == {name: Base.model_fields[name].default for name in defaults}


def test_fields_added_later_leave_the_ids_of_old_cases_alone() -> None:
    names = [field.name for field in fields(Case) if field.compare]
    later = names[names.index("replicate") + 1 :]
    assert list(_ADDED_LATER) == later
    assert BASE.case_id == "ddp-w2-c5c819b5"  # as before the first of them
    for name in later:
        assert BASE.case_id != replace(BASE, **{name: AXES[name]}).case_id


@pytest.mark.parametrize(
    ("strategy", "options", "case_id"),
    [
        ("fsdp", {"reshard_after_forward": True, "wrap": "blocks"}, "fsdp-w4-39158748"),
        ("pipeline", {"microbatches": 4, "order": "gpipe"}, "pipeline-w4-e37d2b52"),
    ],
)
def test_replicas_leave_the_ids_of_old_cases_alone(
    strategy: str, options: dict[str, Any], case_id: str
) -> None:
    def of(replicas: dict[str, int]) -> str:
        text = json.dumps(options | replicas, sort_keys=True)
        return Case(workload="gpt:nano", strategy=strategy, world_size=4, options_json=text).case_id

    assert of({}) == of({"replicas": 1}) == case_id  # as before there were any
    assert of({"replicas": 2}) != case_id


@pytest.mark.parametrize("name", AXES)
def test_an_axis_over_any_field_gives_distinct_labels(name: str) -> None:
    cases = pair(name)
    assert len({Namer(cases).full(case) for case in cases}) == 2
    assert {name} <= {*grouping.differing(cases)} <= {name, *WITH.get(name, ())}


@pytest.mark.parametrize("name", AXES)
def test_cases_are_comparable_but_for_what_a_panel_shares(name: str) -> None:
    one, other = pair(name)
    assert (grouping.panel(one) == grouping.panel(other)) == (FACETS[name].role != "panel")
    assert (grouping.variant(one) == grouping.variant(other)) == (FACETS[name].role != "variant")
    assert grouping.alike(one) != grouping.alike(other)
    but = (name, *WITH.get(name, ()))
    assert grouping.alike(one, but=but) == grouping.alike(other, but=but)


@pytest.mark.parametrize("name", AXES)
def test_whatever_tells_two_cases_apart_has_words_and_a_column(name: str) -> None:
    cases = pair(name)
    first, second = ([*Namer(cases).apart(case, [name])] for case in cases)
    assert first != second
    settings = columns(cases, FACETS)
    assert len(settings) == 1 + (name in WITH)
    assert all(len({setting.text(case) for case in cases}) == 2 for setting in settings)


def test_the_batch_of_a_panel_is_the_one_that_scaling_holds_fixed() -> None:
    weak = [replace(BASE, world_size=n, global_batch=8 * n) for n in (1, 2)]
    strong = [
        replace(BASE, scaling="strong", world_size=n, global_batch=16, local_batch=16 // n) for n in (1, 2)
    ]
    for cases in (weak, strong):
        assert len({grouping.panel(case) for case in cases}) == 1
    assert grouping.panel(weak[0]) != grouping.panel(strong[0])


def test_what_a_number_may_not_be_shown_without() -> None:
    assert grouping.qualifiers(BASE) == []
    replay = replace(
        BASE, fabric="1 Gbit/s", compute="replayed", dilation=2.0, precision="bf16", loader_workers=2
    )
    assert grouping.qualifiers(replay) == [
        "2 loader workers",
        "emulated 1 Gbit/s link",
        "replayed computation",
        "dilated x2",
        "bf16 autocast",
    ]


def test_what_decides_a_loss_a_model_s_state_and_a_rank_s_computation() -> None:
    for what, same, apart in (
        ("loss", replace(BASE, threads_per_rank=2, fabric="1 Gbit/s"), replace(BASE, seed=1)),
        ("state", replace(BASE, seed=1, world_size=4), replace(BASE, dtype="float64")),
        (
            "compute",
            replace(BASE, bucket_cap_mb=5.0, seed=1, scaling="strong"),
            replace(BASE, threads_per_rank=2),
        ),
    ):
        assert (
            grouping.deciding(what, same) == grouping.deciding(what, BASE) != grouping.deciding(what, apart)
        )  # type: ignore[arg-type]


def test_options_are_compared_among_those_who_have_them() -> None:
    """An option that only another strategy or workload has is not a column; names keep their underscores."""
    ddp, other = (
        replace(BASE, options_json='{"accumulate": 1}'),
        replace(BASE, strategy="master", options_json="{}"),
    )
    assert columns([ddp, other], ["options_json"]) == []
    cases = [ddp, replace(ddp, options_json='{"accumulate": 2}'), other]
    (setting,) = columns(cases, ["options_json"])
    assert (setting.title, [setting.text(case) for case in cases]) == ("accumulate", ["1", "2", ""])
    differing_words = [Namer(cases).apart(case, ["options_json"]) for case in cases]
    assert differing_words == [["accumulate=1"], ["accumulate=2"], []]
    assert Namer([ddp, other]).apart(ddp, ["options_json"]) == []
    (workload,) = columns([BASE, replace(BASE, workload="two_branch")], ["workload"])
    assert workload.text(replace(BASE, workload="two_branch")) == "two_branch"
    (checkpoints,) = columns(pair("checkpoint"), ["checkpoint"])
    assert [checkpoints.text(case) for case in pair("checkpoint")] == ["no", "yes"]


def test_autocast_in_the_users_hand_is_told_beside_the_type() -> None:
    case = replace(BASE, workload="train.py:Mine")
    machine = {"context": {"own_workloads": {"train.py:Mine": {"autocast": "bf16"}, "other.py:Mine": {}}}}
    assert grouping.number_words(case, machine) == "float32 with its own bf16 autocast"
    assert grouping.number_words(replace(case, workload="other.py:Mine"), machine) == "float32"
    assert grouping.number_words(replace(case, precision="fp16"), {}) == "float32 with fp16 autocast"
    given = replace(case, workload_options_json='{"half": true}')
    assert grouping.number_words(given, machine) == "float32 with its own bf16 autocast"
    machine["context"]["own_workloads"]['train.py:Mine {"half": true}'] = {"autocast": "fp16"}
    assert grouping.number_words(given, machine) == "float32 with its own fp16 autocast"
    assert grouping.number_words(case, machine) == "float32 with its own bf16 autocast"
