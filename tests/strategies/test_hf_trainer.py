"""transformers' Trainer as a strategy, on real ranks: proved, compared with plain DDP, and with defaults on."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.strategies.frameworks.process_state import unchanged
from tests.ranks import run_ranks
from tests.strategies.proving import (
    STEPS,
    Plant,
    Trained,
    broken,
    case_of,
    gap,
    proofs,
    steps_of,
    trained,
)

framework = pytest.mark.framework("hf_trainer")
every_world = pytest.mark.parametrize("world_size", [1, 2])
TOLERANCE = 1e-6
"""float32 has 1e-7; five updates accumulate other roundings when gradients are summed in another order."""
HF = load_strategy("hf_trainer")


@cache
def run(strategy: str, world_size: int, active: bool = False, accumulate: int = 1) -> list[Trained]:
    return run_ranks(trained, world_size, case_of(strategy, world_size, accumulate=accumulate), None, active)


@framework
@pytest.mark.ranks
@every_world
def test_it_trains_as_one_process_does_with_every_option(world_size: int) -> None:
    cases = [case_of("hf_trainer", world_size, name) for name in ("mlp:small", "cnn:small")]
    cases += [case_of("hf_trainer", world_size, "cnn:small", **options) for options in HF.variants]
    cases.append(replace(cases[1], precision="bf16"))
    for rank in run_ranks(proofs, world_size, cases):
        assert [broken(found) for found in rank] == [set()] * len(cases)
        for found in rank:
            compared = {proof.compared for proof in found if proof.dtype == "float64" and proof.error < 1e-10}
            assert compared >= {"gradients, same shards", "gradients, whole batch"}
    assert any("bf16 autocast" in proof.dtype for proof in rank[-1])


@framework
@pytest.mark.ranks
@every_world
def test_parameters_and_losses_are_those_of_plain_ddp(world_size: int) -> None:
    for own, ddp in zip(run("hf_trainer", world_size), run("ddp", world_size), strict=True):
        assert gap(own.parameters, ddp.parameters) <= TOLERANCE
        assert own.losses == pytest.approx(ddp.losses, rel=TOLERANCE)
        assert own.held == ddp.held


def clips(patch: pytest.MonkeyPatch) -> None:
    _with_arguments(patch, max_grad_norm=0.01)


def lowers_the_rate(patch: pytest.MonkeyPatch) -> None:
    """Do what the Trainer does by default: a learning rate that falls to zero, here within few steps."""
    from ddpbench.strategies.frameworks.hf_trainer import replica

    _with_arguments(patch, max_steps=4, lr_scheduler_type="linear", warmup_steps=1)
    patch.setattr(replica, "scheduler_of", lambda optimizer: None)


def accumulates(patch: pytest.MonkeyPatch) -> None:
    """Use another number of batches per update than the harness gives."""
    _with_arguments(patch, gradient_accumulation_steps=2)


def deals_anew(patch: pytest.MonkeyPatch) -> None:
    """Make a loader that divides each rank's batch among ranks again, as a silently replaced sampler would."""
    from ddpbench.strategies.frameworks.hf_trainer.replica import HfTrainerReplica

    right = HfTrainerReplica._batches

    def half(self: Any) -> Any:
        for given in right(self):
            yield {name: value[::2] for name, value in given.items()}

    patch.setattr(HfTrainerReplica, "_batches", half)


def _with_arguments(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    from ddpbench.strategies.frameworks.hf_trainer import replica

    right = replica.arguments_of
    patch.setattr(replica, "arguments_of", lambda *asked, **named: right(*asked, **named) | changed)


@framework
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("plant", "caught"),
    [
        (clips, {"gradients, same shards", "gradients, whole batch"}),
        (lowers_the_rate, {"update, same gradients"}),
        (deals_anew, {"gradients, same shards", "gradients, whole batch"}),
    ],
)
def test_what_the_trainer_does_behind_one_s_back_is_caught(plant: Plant, caught: set[str]) -> None:
    for rank in run_ranks(proofs, 2, [case_of("hf_trainer", 2, "cnn:small")], plant):
        assert broken(rank[0]) == {*caught, "parameters, same samples"}


def out_of_turn(rank: int, processes: int) -> str:
    from ddpbench.strategies.frameworks.inverted import LoopEndedError

    with pytest.raises(LoopEndedError) as error:
        proofs(rank, processes, [case_of("hf_trainer", processes)], accumulates)
    return str(error.value)


@framework
@pytest.mark.ranks
def test_another_number_of_batches_per_update_is_reported() -> None:
    assert run_ranks(out_of_turn, 1) == [
        "the Trainer's loop asked for its batch where its update was due: it must make one update per batch"
    ]


@framework
@pytest.mark.ranks
@pytest.mark.parametrize("precision", ["full", "bf16"])
def test_it_leaves_nothing_behind(tmp_path: Path, precision: Literal["full", "bf16"]) -> None:
    case = replace(case_of("hf_trainer", 1), precision=precision)
    (own,) = run_ranks(trained, 1, case, tmp_path)
    (ddp,) = run("ddp", 1)
    assert own.written == set()
    assert own.random == ddp.random  # neither seeds nor draws
    assert own.environment == {}
    assert (own.attributes, own.of_model, own.hooks) == (set(), set(), 0)
    for name, value in own.parameters.items():
        assert torch.equal(own.closed[name], value), name


@framework
@pytest.mark.ranks
@every_world
@pytest.mark.parametrize("accumulate", [1, 2])
def test_spans_and_transfers_are_noted(world_size: int, accumulate: int) -> None:
    for rank in run("hf_trainer", world_size, True, accumulate):
        size = sum(value.numel() * value.element_size() for value in rank.parameters.values())
        steps = steps_of(rank)
        assert len(steps) == STEPS
        for step, transfers in steps:
            names = [name for name, _, _ in step.spans]
            before = ["forward", "backward"] * (accumulate - 1)
            assert names == ["data", *before, "forward", "backward", "synchronize", "optimizer"]
            moments = [step.start_ns, *(t for _, start, end in step.spans for t in (start, end)), step.end_ns]
            assert moments == sorted(moments)
            assert {one.op for one in transfers} == {"all_reduce"}
            sent = (
                accumulate if world_size == 1 else 1
            )  # of a single process accelerate leaves no backward unsent
            assert sum(one.bytes for one in transfers) == size * sent
        assert rank.buckets[-1] == (size,)
        assert rank.ready == [False, *[True] * (STEPS - 1)]


def bucketed(rank: int, processes: int, cap: float) -> Trained:
    from dataclasses import replace

    return trained(rank, processes, replace(case_of("hf_trainer", processes), bucket_cap_mb=cap))


@framework
@pytest.mark.ranks
def test_a_bucket_cap_reaches_the_trainer_s_ddp() -> None:
    (small,) = run_ranks(bucketed, 1, 0.1)
    assert len(small.buckets[-1]) > 1
    assert sum(small.buckets[-1]) == sum(run("hf_trainer", 1)[0].buckets[-1])


@framework
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "fp16"}, "precision = 'full' or 'bf16'"),
        ({"compute": "median"}, "a replay"),
        ({"local_batch": 3, "options_json": '{"accumulate": 2}'}, "does not divide"),
        ({"bucket_cap_mb": 25}, "another number"),
    ],
)
def test_what_it_cannot_run_is_said(changes: dict[str, Any], words: str) -> None:
    case = Case(**{"workload": "mlp:small", "strategy": "hf_trainer", "world_size": 2, **changes})
    assert words in str(HF.check(case))


def test_a_missing_trainer_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpbench.strategies.frameworks import installed

    monkeypatch.setattr(installed, "_importable", lambda module: module != "transformers")
    reason = str(HF.check(Case(workload="mlp:small", strategy="hf_trainer")))
    assert "pip install 'ddpbench[hf-trainer]'" in reason
    assert "no step()" in str(HF.step_reason(Case(workload="mlp:small", strategy="hf_trainer")))


def test_what_a_framework_seeds_and_sets_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    seen: list[list[float]] = []
    for disturbs in (False, True):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        if disturbs:
            import os

            with unchanged():
                assert "ACCELERATE_MIXED_PRECISION" not in os.environ
                torch.manual_seed(2)
                np.random.seed(2)
                random.seed(2)
                torch.set_num_threads(3)
                os.environ["MASTER_PORT"] = "29500"
            assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"
            assert "MASTER_PORT" not in os.environ
            assert torch.get_num_threads() == 1
        seen.append([float(torch.rand(1)), float(np.random.rand()), random.random()])
    assert seen[0] == seen[1]
