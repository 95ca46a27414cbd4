"""Strategies as the controlling side reads them: the table, their options, and why a case cannot run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

from ddpbench.spec import Case
from ddpbench.strategies import TABLE, Strategy, load_strategy
from ddpbench.strategies.frameworks.installed import missing

NEED_OTHERS = ("fsdp", "post_local_sgd", "async_server")
"""Strategies that make no sense on one rank, and refuse it."""
every_strategy = pytest.mark.parametrize("name", TABLE)


@every_strategy
def test_an_entry_is_the_strategy_of_its_name(name: str) -> None:
    strategy = load_strategy(name)
    assert isinstance(strategy, Strategy)
    assert strategy.name == name
    assert TABLE[name].summary
    assert issubclass(strategy.options, BaseModel)
    assert bool(strategy.algorithm) == bool(strategy.schedule)  # both are empty, or neither


@every_strategy
def test_options_are_frozen_and_refuse_what_they_do_not_know(name: str) -> None:
    options = load_strategy(name).options
    assert options.model_config.get("frozen")
    with pytest.raises(ValidationError, match="no_such_option"):
        options.model_validate({"no_such_option": 1})


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="dpp"):
        load_strategy("dpp")


def test_ddp_has_the_defaults_of_torch() -> None:
    import inspect

    from torch.nn.parallel import DistributedDataParallel

    parameters = inspect.signature(DistributedDataParallel.__init__).parameters
    # no_sync's and the hooks', not the constructor's
    own = {"accumulate", "compression", "matrix_approximation_rank", "start_powersgd_iter"}
    for name, value in load_strategy("ddp").options().model_dump(exclude=own).items():
        # broadcast_buffers is deprecated in newer torch, whose default None stands for True
        assert value == (parameters[name].default is not False), name


@pytest.mark.parametrize("name", [name for name in TABLE if name not in ("single", *NEED_OTHERS)])
@pytest.mark.parametrize("world_size", [1, 4])
def test_most_strategies_run_at_any_world_size(name: str, world_size: int) -> None:
    strategy = load_strategy(name)
    reason = strategy.check(Case(workload="mlp", strategy=name, world_size=world_size))
    assert reason == (missing(strategy.framework) if strategy.framework else None)


def test_single_runs_on_one_device_only() -> None:
    single = load_strategy("single")
    assert single.check(Case(workload="mlp", strategy="single", world_size=1)) is None
    reason = single.check(Case(workload="mlp", strategy="single", world_size=3))
    assert reason is not None
    assert "3" in reason


def test_tables_options_and_checks_need_neither_torch_nor_pandas() -> None:
    code = """
import sys
from ddpbench.spec import Case
from ddpbench.strategies import TABLE, load_strategy
from ddpbench.workloads import load_workload, workload_names
for name in TABLE:
    strategy = load_strategy(name)
    strategy.options()
    strategy.check(Case(workload="mlp", strategy=name))
for name in workload_names():
    workload = load_workload(name)
    workload.options()
    workload.check(Case(workload=name, strategy="ddp"))
print(*sorted({"torch", "numpy", "pandas", "matplotlib"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
