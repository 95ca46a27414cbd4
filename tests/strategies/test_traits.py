"""Analysis and reports know of a strategy only what it states."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from ddpbench.collectives import TABLE as ALGORITHMS
from ddpbench.spec import Case
from ddpbench.strategies import TABLE, load_strategy
from ddpbench.strategies.traits import traits_named, traits_of
from tests.folders import PACKAGE, modules_of


def case(strategy: str, **changes: str) -> Case:
    return Case(workload="mlp", strategy=strategy, world_size=2, **changes)  # type: ignore[arg-type]


def test_what_exchanges_nothing_is_the_base_or_the_bound() -> None:
    apart = [name for name in TABLE if not traits_named(name).exchanges]
    assert {name: traits_named(name).role for name in apart} == {"single": "base", "independent": "bound"}


def test_there_is_one_base_one_bound_and_one_reference() -> None:
    roles = sorted(traits_named(name).role for name in TABLE if traits_named(name).role)
    assert roles == ["base", "bound", "reference"]


def test_only_the_base_and_the_bound_are_exact_without_a_promise() -> None:
    assert all(traits_named(name).exact for name in ("single", "independent"))
    own = replace(traits_named("independent"), role="")
    assert not own.exact


def test_a_promise_may_depend_on_options() -> None:
    assert traits_of(case("ddp", options_json="{}")).exact
    squeezed = traits_of(case("ddp", options_json='{"compression": "powersgd"}'))
    assert squeezed.promise == "delayed"
    assert not squeezed.exact


@pytest.mark.parametrize("unknown", [case("gossip"), case("ddp", options_json='{"of_another_version": 1}')])
def test_what_promises_nothing_that_is_known_is_not_exact(unknown: Case) -> None:
    traits = traits_of(unknown)
    assert traits.promise is None
    assert traits.exchanges
    assert not traits.exact


def test_data_parallel_says_what_it_is_on_a_cpu() -> None:
    assert traits_of(case("data_parallel")).display == "DataParallel (threads)"
    assert traits_of(case("data_parallel", device="cuda")).display == "DataParallel"


def test_analysis_and_reports_know_no_strategy_by_name() -> None:
    """Except in words for people, and where an algorithm has a strategy's name."""
    names = {*TABLE} - {*ALGORITHMS}
    terms = {"independent"}  # a term of the glossary
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.value}"
        for path in modules_of("analysis", "report")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and node.value in names
        and not (path.name == "method.py" and node.value in terms)
    ]
    assert found == []


def test_who_reads_runs_loads_no_class_that_a_run_may_name() -> None:
    loading = {
        "load_class",
        "load_collective",
        "load_strategy",
        "load_workload",
        "own_strategy",
        "TableCatalog",
    }
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in modules_of("analysis", "records", "report", "spec")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Name) and node.id in loading)
        or (isinstance(node, ast.Attribute) and node.attr in loading)
    ]
    assert found == []


def test_ranks_of_these_strategies_alone_do_not_wait_for_each_other_in_every_step() -> None:
    strategies = {name: load_strategy(name) for name in TABLE}
    apart = {name for name, found in strategies.items() if not (found.framework or found.waits_in_step)}
    assert apart == {"independent", "post_local_sgd", "async_server"}
