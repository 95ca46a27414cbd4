"""Collective algorithms and schedules as settings and axes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import Case, Devices, PlannedCase, expand, parse_experiment

DEVICES = Devices(kind="cpu", gpus=0, cores=8)


def planned(text: str) -> list[PlannedCase]:
    catalog = TableCatalog()
    cases = expand(parse_experiment(text, catalog, name="algorithms"), catalog, DEVICES)
    return [entry for entry in cases if not entry.added_as_baseline]


def test_every_pair_of_algorithm_and_schedule_is_a_case_with_a_name_and_an_id_of_its_own() -> None:
    cases = planned(
        """
        [base]
        world_size = 4
        [axes]
        algorithm = ["all_reduce", "ring"]
        schedule = ["overlapped", "after_backward"]
        """
    )
    assert [entry.case.label for entry in cases] == [
        "ddp · 4 ranks · default buckets",
        "ddp · after backward · 4 ranks · default buckets",
        "ddp · ring · 4 ranks · default buckets",
        "ddp · ring · after backward · 4 ranks · default buckets",
    ]
    assert len({entry.case.case_id for entry in cases}) == 4


def test_a_strategy_without_a_choice_keeps_its_own_and_is_one_case() -> None:
    cases = planned(
        """
        [base]
        world_size = 2
        [axes]
        strategy = ["ddp", "master"]
        algorithm = ["ring", "tree"]
        schedule = ["overlapped", "after_backward"]
        """
    )
    of_master = [entry.case for entry in cases if entry.case.strategy == "master"]
    assert [(case.algorithm, case.schedule) for case in of_master] == [("master", "after_backward")]
    assert len(cases) == 5


def test_a_plain_ddp_case_is_the_same_with_the_settings_given() -> None:
    (plain,) = planned("[base]\nworld_size = 2")
    (given,) = planned('[base]\nworld_size = 2\nalgorithm = "all_reduce"\nschedule = "overlapped"')
    assert plain.case == given.case


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[base]\nalgorithm = "rign"',
            "base.algorithm: ddp has no \"rign\"; did you mean 'ring'? known: ",
        ),
        (
            '[axes]\nalgorithm = ["ring", "no_such_algorithm"]',
            'axes.algorithm: ddp has no "no_such_algorithm"; known: ',
        ),
        (
            '[base]\nstrategy = "master"\nalgorithm = "ring"',
            'base.algorithm: master leaves no choice of it; set strategy = "ddp"',
        ),
        (
            '[base]\nstrategy = "master"\n[axes]\nschedule = ["overlapped", "after_backward"]',
            'axes.schedule: master leaves no choice of it; set strategy = "ddp"',
        ),
        ('[base]\nschedule = "later"', "base.schedule"),
    ],
)
def test_what_there_is_not_is_named(text: str, expected: str) -> None:
    with pytest.raises(ExperimentError) as error:
        planned(text)
    assert expected in str(error.value)


def test_algorithms_of_messages_between_cpu_ranks_are_skipped_on_gpus() -> None:
    catalog = TableCatalog()
    text = '[base]\nworld_size = 2\ndevice = "cuda"\n[axes]\nalgorithm = ["all_reduce", "tree"]'
    experiment = parse_experiment(text, catalog, name="algorithms")
    devices = Devices(kind="cuda", gpus=2, cores=8)
    reasons = {
        entry.case.algorithm: entry.skip_reason
        for entry in expand(experiment, catalog, devices)
        if not entry.added_as_baseline
    }
    assert reasons["all_reduce"] is None
    assert reasons["tree"] is not None
    assert 'set algorithm = "all_reduce"' in reasons["tree"]


def test_runs_from_before_an_option_was_there_keep_their_ids() -> None:
    stored = Path(__file__).with_name("cases_before_options.json")  # from an earlier run
    catalog = TableCatalog()
    compared = 0
    for data in json.loads(stored.read_text(encoding="utf-8")):
        case = Case.from_json(data)
        options = catalog.strategy(case.strategy).options.model_validate(case.options)
        now = replace(case, options_json=json.dumps(options.model_dump(mode="json"), sort_keys=True))
        assert now.case_id == data["case_id"]
        compared += now.options_json != case.options_json
    assert compared >= 3  # DDP's cases, which have options since


@pytest.mark.parametrize("strategy", ["zero1", "post_local_sgd"])
def test_switches_of_ddp_that_are_off_leave_an_id_as_it_was(strategy: str) -> None:
    options = TableCatalog().strategy(strategy).options().model_dump(mode="json")
    off = {name: options.pop(name) for name in ("static_graph", "find_unused_parameters")}
    before = Case(workload="mlp:small", strategy=strategy, options_json=json.dumps(options))
    now = [
        replace(before, options_json=json.dumps({**options, **off, **on}))
        for on in ({}, {"static_graph": True})
    ]
    assert now[0].case_id == before.case_id != now[1].case_id


def test_a_choice_that_is_made_is_part_of_the_id() -> None:
    cases = planned("[base]\nworld_size = 2\n[axes]\n'options.ddp.accumulate' = [1, 2, 4]")
    assert len({entry.case.case_id for entry in cases}) == 3


def test_a_strategy_without_a_choice_is_labelled_by_its_name() -> None:
    (case,) = planned('[base]\nworld_size = 2\nstrategy = "data_parallel"')
    assert case.case.label == "data_parallel · 2 ranks"
