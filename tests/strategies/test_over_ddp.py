"""Answers about frameworks over DDP without the frameworks: why a case cannot run, and DDP's arguments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpbench.launch.settings_page import keys
from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.strategies.frameworks import over_ddp
from ddpbench.strategies.frameworks.imports import imported
from ddpbench.strategies.frameworks.over_ddp import OverDdpOptions, ddp_arguments

BOTH = ("accelerate", "lightning")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that every framework is installed."""
    monkeypatch.setattr(over_ddp, "missing", lambda _: None)


def reason(strategy: str, options: dict[str, Any] | None = None, **settings: Any) -> str | None:
    settings = {"world_size": 2, "local_batch": 4, "bucket_cap_mb": "default", **settings}
    case = Case(workload="mlp:small", strategy=strategy, options_json=json.dumps(options or {}), **settings)
    return load_strategy(strategy).check(case)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("strategy", BOTH)
def test_what_cannot_run_says_what_to_do(strategy: str) -> None:
    assert reason(strategy) is None
    assert reason(strategy, precision="bf16") is None
    assert "set precision = 'full' or 'bf16'" in str(reason(strategy, precision="fp16"))
    assert "does not divide a local batch of 4" in str(reason(strategy, {"accumulate": 3}))
    assert reason(strategy, {"accumulate": 4}) is None
    assert "set accumulate = 1" in str(reason(strategy, {"accumulate": 2}, compute="replayed"))
    assert "set bucket_cap_mb to a number" in str(reason(strategy, compute="replayed", shrink=4))
    assert reason(strategy, compute="replayed", shrink=4, bucket_cap_mb=1) is None


@pytest.mark.usefixtures("there")
def test_accelerate_cannot_be_asked_for_its_default() -> None:
    assert "another number" in str(reason("accelerate", bucket_cap_mb=25))
    assert reason("accelerate", bucket_cap_mb=24) is None
    # The arguments are divided by shrink.
    assert "another number" in str(reason("accelerate", bucket_cap_mb=100, shrink=4, compute="replayed"))
    assert reason("lightning", bucket_cap_mb=25) is None


@pytest.mark.usefixtures("there")
def test_only_the_trainer_is_barebones() -> None:
    assert reason("lightning", {"barebones": True}) is None
    assert "the Trainer's" in str(reason("lightning", {"barebones": True, "api": "fabric"}))


@pytest.mark.parametrize("strategy", BOTH)
def test_a_framework_that_is_not_there_comes_first(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_ddp, "missing", lambda name: f"{name} is not here: a line")
    assert reason(strategy, precision="fp16") == f"{strategy} is not here: a line"


@pytest.mark.parametrize("strategy", BOTH)
def test_a_workloads_own_step_is_refused(strategy: str) -> None:
    reason = load_strategy(strategy).step_reason(Case(workload="train.py:Own", strategy=strategy))
    assert "needs loss(), and no step()" in str(reason)


def test_ddp_gets_only_what_was_switched() -> None:
    case = Case(workload="mlp:small", strategy="accelerate", bucket_cap_mb="default")
    assert ddp_arguments(case, OverDdpOptions()) == {}
    smaller = Case(workload="replay:gpt-nano-cpu", strategy="accelerate", bucket_cap_mb=8, shrink=4)
    switched = OverDdpOptions(static_graph=True, accumulate=2)
    assert ddp_arguments(smaller, switched) == {"bucket_cap_mb": 2, "static_graph": True}


def test_the_sentences_of_shared_options_are_found() -> None:
    found = {key.name: key for key in keys(load_strategy("lightning").options)}
    assert found["accumulate"].meaning.startswith("Split each batch")
    assert found["accumulate"].unit == "parts"
    assert found["api"].meaning.startswith("Train by")


def test_one_that_is_broken_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        ImportError,
        match=r"cannot be imported: RuntimeError: operator nms does not exist; .*'ddpbench\[accelerate\]'",
    ):
        imported("accelerate", "accelerate")
