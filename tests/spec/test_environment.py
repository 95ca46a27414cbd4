"""Environment variables as settings: their cases, those that are refused, and those that are probably
misspelt.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.naming import Namer, columns
from ddpbench.spec import Case, Devices, PlannedCase, expand, grouping, parse_experiment
from ddpbench.spec.environment import KNOWN, meant, moves_data, refused

CATALOG = TableCatalog()
TWO_CORES = Devices(kind="cpu", gpus=0, cores=2)
AXIS = """
[base]
world_size = 2
{base}
[axes]
strategy = ["single", "ddp"]
{axes}
"""


def cases_of(text: str) -> list[PlannedCase]:
    return expand(parse_experiment(text, CATALOG, name="test"), CATALOG, TWO_CORES)


def ddp_cases(axes: str, env: str = "") -> list[Case]:
    text = AXIS.format(base="", axes=axes) + env
    return [entry.case for entry in cases_of(text) if entry.case.strategy == "ddp"]


def problems_of(text: str) -> list[str]:
    with pytest.raises(ExperimentError) as caught:
        cases_of(text)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    "axes", ['"env.NCCL_NTHREADS" = [256, "512"]', '[axes.env]\nNCCL_NTHREADS = ["256", 512]']
)
def test_a_variable_is_an_axis_and_numbers_are_texts(axes: str) -> None:
    cases = ddp_cases(axes)
    assert [case.env for case in cases] == [{"NCCL_NTHREADS": "256"}, {"NCCL_NTHREADS": "512"}]
    assert len({case.case_id for case in cases}) == 2
    assert [Namer(cases).full(case) for case in cases] == [
        f"ddp · 2 ranks · default buckets · NCCL_NTHREADS={value}" for value in (256, 512)
    ]


def test_what_is_set_for_all_is_in_every_case_and_an_axis_comes_before_it() -> None:
    (case,) = ddp_cases("", '[env]\nNCCL_ALGO = "Ring"\nMALLOC_ARENA_MAX = 1')
    assert case.env == {"MALLOC_ARENA_MAX": "1", "NCCL_ALGO": "Ring"}
    message = problems_of(
        AXIS.format(base="", axes='"env.NCCL_ALGO" = ["Ring"]') + '[env]\nNCCL_ALGO = "Tree"'
    )
    assert message == ["env.NCCL_ALGO: is an axis too: give env.NCCL_ALGO or axes.env.NCCL_ALGO, not both"]


def test_a_transports_variables_mean_nothing_to_a_job_without_one() -> None:
    text = AXIS.format(base="", axes='"env.NCCL_ALGO" = ["Ring", "Tree"]') + "[env]\nMALLOC_ARENA_MAX = 1"
    runs = cases_of(text)
    single = [entry.case for entry in runs if entry.case.strategy == "single" and not entry.skip_reason]
    assert [case.env for case in single] == [{"MALLOC_ARENA_MAX": "1"}]  # one, and the base case of both
    assert {entry.case.baseline().case_id for entry in runs} == {single[0].case_id}


def test_cases_with_other_variables_are_compared_with_each_other() -> None:
    ring, tree = ddp_cases('"env.NCCL_ALGO" = ["Ring", "Tree"]')
    assert grouping.panel(ring) == grouping.panel(tree)
    assert grouping.variant(ring) != grouping.variant(tree)
    assert grouping.deciding("compute", ring) == grouping.deciding("compute", tree)
    other = replace(ring, env_json='{"MALLOC_ARENA_MAX": "1"}')
    assert grouping.deciding("compute", ring) != grouping.deciding("compute", other)
    assert [setting.title for setting in columns([ring, tree], ["env_json"])] == ["NCCL_ALGO"]
    assert Namer([ring, tree]).apart(ring, ["env_json"]) == ["NCCL_ALGO=Ring"]


def test_an_empty_text_is_a_variable_that_is_not_set() -> None:
    unset, ring = ddp_cases('"env.NCCL_ALGO" = ["", "Ring"]')
    assert unset.env == {"NCCL_ALGO": ""}
    assert Namer([unset, ring]).full(unset).endswith("NCCL_ALGO unset")
    assert Namer([unset, ring]).apart(unset, ["env_json"]) == ["NCCL_ALGO unset"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("OMP_NUM_THREADS", "use base.threads_per_rank"),
        ("WORLD_SIZE", "use base.world_size"),
        ("MASTER_ADDR", "give it to the launcher"),
        ("PYTHONPATH", "set it in the shell"),
        ("DDPBENCH_CORES", "ddpbench's own"),
        ("TORCHELASTIC_RUN_ID", "leave it out"),
        ("A B", "is not a valid name of a variable"),
        ("7UP", "is not a valid name of a variable"),
        ("A" * 101, "is not a valid name of a variable"),
    ],
)
def test_variables_that_are_not_the_experiments(name: str, why: str) -> None:
    assert why in refused(name)
    for where, text in (
        (f"axes.env.{name}", AXIS.format(base="", axes=f'"env.{name}" = ["1"]')),
        (f"env.{name}", f'[env]\n"{name}" = "1"\n[base]\nworld_size = 2'),
    ):
        (message,) = problems_of(text)
        assert message.startswith(where) or len(name) > 100, message
        assert why in message


@pytest.mark.parametrize("value", ["true", "1.5", "[1]", "{}"])
def test_values_that_no_variable_has(value: str) -> None:
    (message,) = problems_of(f"[env]\nNCCL_ALGO = {value}\n[base]\nworld_size = 2")
    assert message.startswith("env.NCCL_ALGO: ")
    assert "string" in message


def test_a_fabric_has_interfaces_of_its_own() -> None:
    (message,) = problems_of(
        '[base]\nworld_size = 2\n[env]\nGLOO_SOCKET_IFNAME = "lo"\n[fabric]\nbandwidth = "1 Gbit/s"'
    )
    assert message.startswith("env.GLOO_SOCKET_IFNAME: an emulated network sets its own interfaces")


def test_a_misspelt_variable_is_told_and_not_refused() -> None:
    said: list[str] = []
    text = AXIS.format(base="", axes='"env.NCCL_AGLO" = ["Ring"]') + "[env]\nTORCH_NCL_HIGH_PRIORITY = 1"
    parse_experiment(text, CATALOG, name="test", on_note=said.append)
    assert said == [
        "env.TORCH_NCL_HIGH_PRIORITY: no known program reads this variable; did you mean TORCH_NCCL_HIGH_PRIORITY?",
        "env.NCCL_AGLO: no known program reads this variable; did you mean NCCL_ALGO?",
    ]


def test_only_what_is_close_to_a_known_name_is_misspelt() -> None:
    assert not any(meant(name) for name in KNOWN)
    assert not any(map(meant, ("NCCL_SOMETHING_NEW", "TORCHVISION_X", "OMP_NUM_THREAD", "PATH")))
    assert moves_data("TORCH_NCCL_BLOCKING_WAIT")
    assert not moves_data("TORCH_LOGS")


def test_it_is_read_back_as_it_was_written() -> None:
    text = AXIS.format(base="", axes='"env.NCCL_ALGO" = ["", "Ring"]') + '[env]\nUCX_TLS = "tcp"'
    experiment = parse_experiment(text, CATALOG, name="test")
    assert parse_experiment(experiment.to_toml(), CATALOG, name="test") == experiment


def test_an_override_replaces_an_axis_of_a_variable() -> None:
    said: list[str] = []
    experiment = parse_experiment(
        AXIS.format(base="", axes='"env.NCCL_ALGO" = ["", "Ring"]'),
        CATALOG,
        name="test",
        overrides=["env.NCCL_ALGO=Tree"],
        on_note=said.append,
    )
    assert experiment.env == {"NCCL_ALGO": "Tree"}
    assert said == ["env.NCCL_ALGO = Tree replaces the axis env.NCCL_ALGO = [, Ring]"]


def test_excludes_know_variables() -> None:
    text = AXIS.format(base="", axes='"env.NCCL_ALGO" = ["", "Ring"]')
    cases = cases_of(text + '[[exclude]]\nstrategy = "ddp"\n"env.NCCL_ALGO" = ["Ring"]')
    assert [entry.case.env for entry in cases if entry.case.strategy == "ddp"] == [{"NCCL_ALGO": ""}]
