"""Limits of every number of a request, in one table: files, --set and flags state the same limits."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ddpbench.cli import flags, make_parser
from ddpbench.errors import ExperimentError, RequestError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.plan import make_plan
from ddpbench.launch.settings_page import _alternatives
from ddpbench.spec import Base, Budget, Devices, FabricSettings, expand, limits, parse_experiment
from ddpbench.spec.limits import Range
from ddpbench.strategies import TABLE as STRATEGIES
from ddpbench.workloads import TABLE as WORKLOADS
from ddpbench.workloads.profile import Parameter, Profile, Provenance, Seconds

CATALOG = TableCatalog()
CORES = Devices(kind="cpu", gpus=0, cores=4)


def models() -> Iterator[type[BaseModel]]:
    yield from (Base, Budget, FabricSettings, Profile, Parameter, Provenance, Seconds)
    yield from (CATALOG.strategy(name).options for name in STRATEGIES)
    yield from (CATALOG.workload(name).options for name in WORKLOADS)


def test_every_number_of_a_file_has_its_limits() -> None:
    seen = 0
    for model in models():
        for name, field in model.model_fields.items():
            if name in ("bandwidth", "shape"):  # arrays, whose numbers have them
                continue
            for kind, metadata in _alternatives(field.annotation, field.metadata):
                if kind in (int, float):
                    seen += 1
                    assert any(isinstance(one, Range) for one in metadata), f"{model.__name__}.{name}"
    assert seen > 50


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


TEXTS = {
    *("NAME", "NAME=VALUE", "KEY=VALUE", "VALUE", "OPTION[=VALUE]", "TEXT", "LINE", "A,B", "FORMATS", "DIR"),
    *("EXPERIMENT", "WORKLOAD", "RUN", "SIDE", "GOOD", "BAD"),
}
"""The metavars of flags and arguments that take a text."""
NAMES = {"--strategy", "--algorithm", "--workload"}
READ_APART = {"--nodes", "--time", "--fabric", "--queue-wait"}
"""Several numbers, or Slurm's formats: `test_unusable_values.py` gives each a number beyond its limits."""


def test_every_number_of_a_flag_has_its_limits() -> None:
    """A flag takes a text, a path or a choice, or refuses a number that nothing can take."""
    numbers = 0
    for name, parser in commands().items():
        for action in parser._actions:
            flag = f"{name} {action.option_strings or action.dest}"
            if action.nargs == 0 or action.choices or action.type in (Path, flags.output_path):
                continue
            if action.type is None:
                shown = action.metavar in TEXTS or {*action.option_strings} & (NAMES | READ_APART)
                assert shown, f"{flag} reads a number without limits, or an unknown text"
                continue
            assert callable(action.type)
            numbers += 1
            for value in ("1e400 s", "1e400", "nan", "-1"):
                with pytest.raises((RequestError, argparse.ArgumentTypeError)):
                    action.type(value)
    assert numbers > 20


@pytest.mark.parametrize(
    ("limit", "given", "said"),
    [
        (
            limits.LOADER_WORKERS,
            "1000000",
            "must be a whole number, 0 to 128: every rank starts this many processes",
        ),
        (limits.LOADER_WORKERS, "-1", "-1 given; must be a whole number, 0 to 128"),
        (limits.LOADER_WORKERS, "1.5", "1.5 given; must be a whole number, 0 to 128"),
        (limits.LOADER_WORKERS, "nan", "nan given; must be a whole number"),
        (limits.LOADER_WORKERS, "9" * 400, "a whole number of about 400 digits given; must be"),
        (limits.LOADER_WORKERS, "", "'' given; must be a whole number"),
        (limits.HANG_TIMEOUT_S, "0", "0 given; must be 1 s to 1 day: a rank's start"),
        (limits.HANG_TIMEOUT_S, "1e-9", "1e-09 given; must be 1 s to 1 day"),
        (limits.HANG_TIMEOUT_S, "nan", "nan given; must be 1 s to 1 day"),
        (limits.HANG_TIMEOUT_S, "inf", "inf given; must be 1 s to 1 day"),
        (limits.HANG_TIMEOUT_S, "9" * 400, "digits given; must be 1 s to 1 day"),
        (limits.HANG_TIMEOUT_S, "2 days", "invalid duration '2 days'"),
        (limits.HALF_WIDTH, "0", "0 given; must be above 0 and below 1"),
        (limits.LOSS, "100 %", "'100 %' given; must be from 0 and below 1: nothing would arrive"),
        (limits.RATE, "1 Mbit/s", "must be 8 Mbit/s to 4 Tbit/s: a burst of 2 ms would hold no frame"),
    ],
)
def test_a_flag_says_what_was_given_and_what_may_be(limit: Range, given: str, said: str) -> None:
    with pytest.raises(ValueError, match="given; ") as caught:
        limit.parsed(given)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


def test_limits_themselves_are_allowed_and_floats_are_floats() -> None:
    assert limits.RANKS.parsed(" 4096 ") == limits.RANKS.high
    assert limits.HANG_TIMEOUT_S.parsed("20 min") == 1200.0
    assert isinstance(limits.DILATION.checked(2), float)
    assert limits.LOSS.checked("1 %") == 0.01
    for one in (True, None, "3", math.nan, [1]):
        with pytest.raises(ValueError, match="must be"):
            limits.RANKS.checked(one)


def plan_of(text: str, *overrides: str) -> None:
    experiment = parse_experiment(text, CATALOG, name="x", overrides=overrides)
    make_plan(experiment, expand(experiment, CATALOG, CORES))


def problem_of(text: str, *overrides: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        plan_of(text, *overrides)
    (problem,) = caught.value.problems
    return str(problem)


def test_axes_are_counted_before_they_are_multiplied() -> None:
    assert problem_of("", f"axes.world_size={list(range(1, 1002))}") == (
        "axes.world_size: has 1,001 values; must be 1,000 at most: leave values out"
    )
    values = list(range(1, 101))
    said = problem_of(f"[axes]\nlocal_batch = {values}\nseed = {values}\nreplicate = [0, 1]")
    assert said.startswith(
        "axes: 100 local_batch x 100 seed x 2 replicate make 20,000 combinations; must be 5,000 at most: leave"
    )


def test_launches_are_counted_before_their_order_is_made() -> None:
    said = problem_of(f"[axes]\nseed = {list(range(100))}\n[budget]\nrounds_max = 1000")
    assert said == (
        "budget.rounds_max: 1,000 given; 200 cases in 1,000 rounds are 200,000 launches, but a plan must have "
        "100,000 at most"
    )
    assert problem_of("", "budget.rounds_max=1_000_000_000").startswith(
        "budget.rounds_max: 1000000000 given; must be a whole number, 1 to 1,000: "
    )


def test_one_machine_starts_no_more_processes_than_it_can() -> None:
    text = "[base]\nworld_size = 1024\nloader_workers = 100"
    cases = expand(parse_experiment(text, CATALOG, name="x"), CATALOG, CORES)
    assert any("103,424 processes" in (entry.skip_reason or "") for entry in cases)


def test_a_fabric_has_no_more_ranks_than_a_job() -> None:
    said = problem_of('[fabric]\nnodes = 128\nranks_per_node = 64\nbandwidth = "1 Gbit/s"')
    assert said == "fabric: 128 nodes of 64 ranks are 8,192 ranks; must be 4,096 at most"


def test_an_error_of_many_values_is_not_as_long_as_they_are() -> None:
    values: list[Any] = [-n for n in range(900)]
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(f"[axes]\nlocal_batch = {values}", CATALOG, name="x")
    assert len(caught.value.problems) == 900
    lines = str(caught.value).splitlines()
    assert len(lines) == 42
    assert lines[-1] == "  and 860 more"
