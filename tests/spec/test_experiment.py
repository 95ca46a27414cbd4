"""Experiments: accepted settings, the message for every mistake, and the cases of a matrix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import Case, Devices, PlannedCase, expand, grouping, load_experiment, parse_experiment
from ddpbench.spec.settings import Base

CATALOG = TableCatalog()
FOUR_CORES = Devices(kind="cpu", gpus=0, cores=4)


def problems_of(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(text, CATALOG, name="test", overrides=overrides)
    return [str(problem) for problem in caught.value.problems]


def cases_of(text: str, devices: Devices = FOUR_CORES) -> list[PlannedCase]:
    return expand(parse_experiment(text, CATALOG, name="test"), CATALOG, devices)


def test_all_mistakes_are_told_at_once_with_path_value_and_nearest_name() -> None:
    found = problems_of(
        """
        [base]
        strategy = "dpd"
        local_batch = -3
        treads_per_rank = 2
        [axes]
        world_size = []
        bucket_cap_mb = ["huge", 25]
        wrold_size = [1]
        [options.ddp]
        find_unused = true
        [budget]
        total = "ten minutes"
        [basis]
        """
    )
    text = "\n".join(found)
    assert "base.strategy" not in text  # the whole section is checked first; the problems are its fields
    for fragment in (
        "basis: unknown section; did you mean 'base'?",
        "base.local_batch: -3 given",
        "base.treads_per_rank: unknown key; did you mean 'threads_per_rank'?",
        "axes.world_size: is empty",
        "axes.bucket_cap_mb: 'huge' given",
        "axes.wrold_size: unknown axis; did you mean 'world_size'?",
        "budget.total: 'ten minutes' given",
    ):
        assert fragment in text, fragment


def test_unknown_names_name_the_nearest() -> None:
    found = problems_of('[base]\nworkload = "gtp:nano"\n[axes]\nstrategy = ["ddp", "mastre"]')
    assert any(
        "base.workload: unknown workload 'gtp:nano'; did you mean 'gpt:nano'?" in line for line in found
    )
    assert any("axes.strategy: unknown strategy 'mastre'; did you mean 'master'?" in line for line in found)


def test_unknown_options_name_the_strategys_own() -> None:
    found = problems_of("[options.ddp]\ngradient_as_bucket = true")
    assert len(found) == 1
    assert found[0].startswith(
        "options.ddp.gradient_as_bucket: unknown key; did you mean 'gradient_as_bucket_view'?"
    )


def test_options_of_something_unused_are_refused() -> None:
    assert (
        "not used by this experiment"
        in problems_of("[options.gpt]\nblock_size = 32\n[base]\nworkload='mlp'")[0]
    )


def test_broken_toml_says_where() -> None:
    assert "at line 2, column 8" in problems_of("[base]\nseed = = 2\n")[0]


@pytest.mark.parametrize(
    "path", ['axes."fabric.bandwidth"', "axes.fabric.bandwidth", "axes.'fabric.bandwidth'"]
)
def test_an_override_takes_a_dotted_axis_with_and_without_quotes(path: str) -> None:
    override = f"{path}=['1 Gbit/s', '10 Gbit/s']"
    experiment = parse_experiment("[fabric]\nnodes = 2", CATALOG, name="x", overrides=[override])
    assert experiment.axes == {"fabric.bandwidth": [1e9, 1e10]}


def test_overrides_apply_before_validation_and_take_bare_words() -> None:
    experiment = parse_experiment(
        "",
        CATALOG,
        name="x",
        overrides=["base.strategy=master", "axes.world_size=[1,2]", "budget.total=1 min"],
    )
    assert experiment.base.strategy == "master"
    assert experiment.axes == {"world_size": [1, 2]}
    assert experiment.budget.total == 60.0
    assert "--set" in problems_of("", "base.local_batch")[0]
    assert "unknown key" in problems_of("", "base.lokal_batch=3")[0]


def test_rounds_max_below_rounds_min_is_refused() -> None:
    assert "below rounds_min" in problems_of("[budget]\nrounds_min = 9\nrounds_max = 3")[0]


def test_toml_round_trip() -> None:
    text = '[base]\nlocal_batch = 3\n[axes]\nbucket_cap_mb = ["default", 1, 2.5]\n[[exclude]]\nworld_size = 1'
    first = parse_experiment(text, CATALOG, name="trip")
    assert parse_experiment(first.to_toml(), CATALOG, name="other") == first


def test_auto_is_powers_of_two_up_to_the_devices() -> None:
    cases = cases_of('[axes]\nworld_size = "auto"', Devices(kind="cpu", gpus=0, cores=6))
    assert [c.case.world_size for c in cases if c.case.strategy == "ddp"] == [1, 2, 4]


def test_threads_divide_the_devices() -> None:
    cases = cases_of('[base]\nthreads_per_rank = 2\n[axes]\nworld_size = "auto"')
    assert [c.case.world_size for c in cases if c.case.strategy == "ddp"] == [1, 2]


def test_gpus_are_taken_where_there_are_some() -> None:
    cases = cases_of('[axes]\nworld_size = "auto"', Devices(kind="cuda", gpus=2, cores=64))
    ddp = [c.case for c in cases if c.case.strategy == "ddp"]
    assert [(c.world_size, c.device, c.backend) for c in ddp] == [(1, "cuda", "nccl"), (2, "cuda", "nccl")]


def test_weak_and_strong_batches_by_hand() -> None:
    weak = cases_of("[base]\nlocal_batch = 6\nworld_size = 4")
    strong = cases_of('[base]\nscaling = "strong"\nglobal_batch = 12\nworld_size = 4')
    assert [(c.case.strategy, c.case.local_batch, c.case.global_batch) for c in weak] == [
        ("ddp", 6, 24),
        ("single", 6, 6),
    ]
    assert [(c.case.strategy, c.case.local_batch, c.case.global_batch) for c in strong] == [
        ("ddp", 3, 12),
        ("single", 12, 12),
    ]


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ExperimentError, match="10 samples do not divide evenly over 4 ranks"):
        cases_of('[base]\nscaling = "strong"\nglobal_batch = 10\nworld_size = 4')


def test_base_cases_are_added_once_and_marked() -> None:
    cases = cases_of("[axes]\nworld_size = [2, 4]")
    added = [c for c in cases if c.added_as_baseline]
    assert [c.case.strategy for c in added] == ["single"]
    ids = {c.case.baseline().case_id for c in cases}
    assert ids == {added[0].case.case_id}


@pytest.mark.parametrize("launcher", get_args(Base.model_fields["launcher"].annotation))
def test_a_base_case_is_started_as_its_case_is(launcher: str) -> None:
    """A step takes up to 4 % longer under another launcher, which must not count as a speed-up."""
    case = Case(workload="gpt:nano", strategy="ddp", launcher=launcher, world_size=2, global_batch=16)
    assert case.baseline().launcher == launcher
    others = replace(case, launcher="local" if launcher != "local" else "ray")
    assert grouping.deciding("compute", case) != grouping.deciding("compute", others)


def test_settings_a_strategy_lacks_make_no_second_case() -> None:
    cases = cases_of(
        '[base]\nstrategy = "master"\nworld_size = 2\n[axes]\nbucket_cap_mb = ["default", 1, 25]'
    )
    assert [c.case.bucket_cap_mb for c in cases if c.case.strategy == "master"] == [None]


def test_default_and_25_are_different_cases() -> None:
    cases = cases_of('[base]\nworld_size = 2\n[axes]\nbucket_cap_mb = ["default", 25]')
    assert len({c.case.case_id for c in cases if c.case.strategy == "ddp"}) == 2


def test_excludes_take_lists_and_single_values() -> None:
    cases = cases_of("[axes]\nworld_size = [1, 2, 4]\n[[exclude]]\nworld_size = [1, 4]")
    assert [c.case.world_size for c in cases if c.case.strategy == "ddp"] == [2]
    with pytest.raises(ExperimentError, match="leaves no case"):
        cases_of("[axes]\nworld_size = [1, 2]\n[[exclude]]\nworld_size = [1, 2]")


def test_an_exclude_that_could_never_match_is_refused() -> None:
    found = problems_of('[[exclude]]\nstrategy = "mastr"\nworld_size = "two"\n[axes]\nworld_size = [1, 2]')
    assert any(
        "exclude[0].strategy: unknown strategy 'mastr'; did you mean 'master'?" in line for line in found
    )
    assert any("exclude[0].world_size: 'two' is not a value" in line for line in found)


def test_an_exclude_takes_a_workload_without_its_size() -> None:
    text = '[axes]\nworkload = ["gpt:nano", "mlp"]\n[[exclude]]\nworkload = "gpt"'
    assert {c.case.workload for c in cases_of(text) if c.case.strategy == "ddp"} == {"mlp:small"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[base]\nworld_size = 100000", "base.world_size"),
        ("[base]\nbucket_cap_mb = true", "base.bucket_cap_mb"),
        ("[base]\nseed = 100000000000000000000000", "base.seed"),
        ("[base]\nlocal_batch = true", "base.local_batch"),
        ("[budget]\nmeasured_s = nan", "budget.measured_s"),
        ("[budget]\nmeasured_s = -1", "budget.measured_s"),
    ],
)
def test_odd_values_are_refused(text: str, path: str) -> None:
    assert problems_of(text)[0].startswith(path)


def test_a_name_that_leaves_the_folder_is_refused() -> None:
    assert problems_of('name = "../../x"')[0].startswith("name")


def test_more_ranks_than_cores_is_oversubscribed_not_refused() -> None:
    cases = cases_of("[axes]\nworld_size = [4, 8]")
    assert {c.case.world_size: c.oversubscribed for c in cases if c.case.strategy == "ddp"} == {
        4: False,
        8: True,
    }


def test_what_a_strategy_cannot_run_is_skipped_with_its_reason() -> None:
    cases = cases_of('[base]\nworld_size = 2\n[axes]\nstrategy = ["single", "ddp"]')
    reasons = {c.case.strategy: c.skip_reason for c in cases if c.case.world_size == 2}
    assert reasons["ddp"] is None
    assert "trains on one device" in (reasons["single"] or "")
    on_cpu = cases_of('[base]\nworld_size = 2\nbackend = "nccl"\ndevice = "cpu"\n[axes]\nstrategy = ["ddp"]')
    assert "nccl" in (on_cpu[0].skip_reason or "")


def test_case_ids_follow_contents_not_the_experiments_name() -> None:
    one = Case(experiment="a", workload="mlp", strategy="ddp", world_size=2)
    same = Case(experiment="b", workload="mlp", strategy="ddp", world_size=2)
    other = Case(experiment="a", workload="mlp", strategy="ddp", world_size=2, replicate=1)
    assert one.case_id == same.case_id != other.case_id
    assert Case.from_json(one.to_json()) == one


def test_every_shipped_experiment_is_valid_and_asks_a_question() -> None:
    folder = Path(__file__).parents[2] / "experiments"
    paths = sorted(folder.glob("*.toml"))
    assert {path.stem for path in paths} >= {"quick", "bucket_size", "strategies"}
    for path in paths:
        catalog = TableCatalog(folder)
        experiment = load_experiment(path, catalog)
        assert experiment.question.endswith("?")
        assert experiment.scope.endswith(".")
        assert expand(experiment, catalog, FOUR_CORES)


@pytest.mark.parametrize(
    ("overrides", "scope"),
    [
        ([], "Small."),
        (["budget.total=1 h", 'question="Why?"', "name=other"], "Small."),
        (["base.local_batch=8"], ""),
        (["axes.world_size=[1]"], ""),
        (["options.ddp.static_graph=true", "budget.rounds_max=9"], ""),
        (["base.local_batch=8", "scope=Large."], "Large."),
    ],
)
def test_what_was_said_of_other_cases_is_left_out(overrides: list[str], scope: str) -> None:
    text = 'scope = "Small."\n[base]\nlocal_batch = 4\n[axes]\nworld_size = [1, 2]'
    found = parse_experiment(text, CATALOG, name="x", overrides=overrides)
    assert found.scope == scope
    assert parse_experiment(found.to_toml(), CATALOG, name="x").scope == scope


TWO_AXES = """
    [axes]
    workload = ["mlp:small", "gpt:nano"]
    world_size = [1, 2]
    "options.ddp.static_graph" = [true, false]
"""


@pytest.mark.parametrize(
    ("override", "left", "expected"),
    [
        (
            "base.workload=train.py:Mine",
            ["world_size", "options.ddp.static_graph"],
            "base.workload = train.py:Mine replaces the axis workload = [mlp:small, gpt:nano]",
        ),
        (
            "options.ddp.static_graph=true",
            ["workload", "world_size"],
            "options.ddp.static_graph = True replaces the axis options.ddp.static_graph = [True, False]",
        ),
    ],
)
def test_an_override_replaces_the_axis_of_its_name_and_says_so(
    override: str, left: list[str], expected: str
) -> None:
    heard: list[str] = []
    experiment = parse_experiment(TWO_AXES, CATALOG, name="x", overrides=[override], on_note=heard.append)
    assert list(experiment.axes) == left
    assert heard == [expected]


def test_an_axis_that_is_asked_for_beside_one_value_is_still_refused() -> None:
    found = problems_of(TWO_AXES, "base.workload=mlp", "axes.workload=['mlp','gpt']")
    assert found == ["base.workload: is an axis too: give base.workload or axes.workload, not both"]


@pytest.mark.parametrize(("scaling", "batch"), [("weak", 4), ("strong", 8)])
def test_of_two_batches_one_scaling_keeps_its_own(scaling: str, batch: int) -> None:
    text = '[base]\nlocal_batch = 4\nglobal_batch = 8\n[axes]\nscaling = ["weak", "strong"]'
    experiment = parse_experiment(text, CATALOG, name="x", overrides=[f"base.scaling={scaling}"])
    (case,) = {entry.case for entry in expand(experiment, CATALOG, FOUR_CORES) if not entry.added_as_baseline}
    assert (case.local_batch, case.global_batch) == (batch, batch)


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        (
            "world_size",
            "[1, 2.0]",
            "axes.world_size: 2.0 given; must be a whole number, 1 to 4,096, or 'auto'",
        ),
        ("strategy", "[1]", "axes.strategy: 1 given; must be a valid string"),
    ],
)
def test_a_wrong_value_is_one_problem_whatever_it_could_have_been(
    axis: str, value: str, message: str
) -> None:
    assert problems_of(f"[axes]\n{axis} = {value}\n") == [message]


TEXT = '[base]\nworkload = "mlp:small"\nstrategy = "ddp"\nworld_size = 2\nlocal_batch = 4\nscaling = "weak"\n'


@pytest.mark.parametrize(
    ("overrides", "said", "batches"),
    [
        (
            ["axes.local_batch=[2, 8]"],
            ["axes.local_batch = [2, 8] replaces base.local_batch = 4"],
            (None, [2, 8], None),
        ),
        (
            ["base.scaling=strong", "base.global_batch=8"],
            ["base.scaling = strong does not use base.local_batch = 4, which is left out"],
            (None, None, 8),
        ),
    ],
)
def test_an_override_replaces_what_it_cannot_stand_with(
    overrides: list[str], said: list[str], batches: tuple[object, object, object]
) -> None:
    """--set cannot remove a setting of the file: settings that contradict it are dropped, with a note."""
    notes: list[str] = []
    found = parse_experiment(TEXT, CATALOG, name="x", overrides=overrides, on_note=notes.append)
    assert notes == said
    axis = list(found.axes["local_batch"]) if "local_batch" in found.axes else None
    assert (found.base.local_batch, axis, found.base.global_batch) == batches


def test_two_overrides_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ExperimentError, match=r"give base\.local_batch or axes\.local_batch, not both"):
        parse_experiment(TEXT, CATALOG, name="x", overrides=["axes.local_batch=[2]", "base.local_batch=3"])
