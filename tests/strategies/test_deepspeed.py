"""DeepSpeed's engine as a strategy, on real ranks: each stage proved, compared with plain DDP, and broken."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.analysis import load, summarize
from ddpbench.records import RunDir
from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
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

framework = pytest.mark.framework("deepspeed")
every_world = pytest.mark.parametrize("world_size", [1, 2])
every_stage = pytest.mark.parametrize("stage", [0, 1, 2])
TOLERANCE = 1e-6
"""float32 has 1e-7; five updates accumulate other roundings when gradients are summed in another order."""
DEEPSPEED = load_strategy("deepspeed")


@cache
def run(stage: int | None, world_size: int, active: bool = False) -> list[Trained]:
    """Return steps under DeepSpeed's stage, or under plain DDP."""
    case = case_of("ddp", world_size) if stage is None else case_of("deepspeed", world_size, zero_stage=stage)
    return run_ranks(trained, world_size, case, None, active)


@framework
@pytest.mark.ranks
@every_world
def test_it_trains_as_one_process_does_with_every_option(world_size: int) -> None:
    cases = [case_of("deepspeed", world_size, name) for name in ("mlp:small", "cnn:small")]
    cases += [case_of("deepspeed", world_size, "cnn:small", **options) for options in DEEPSPEED.variants]
    for rank in run_ranks(proofs, world_size, cases):
        for found in rank:
            assert broken(found) == set()
            errors = {proof.compared: proof.error for proof in found if proof.dtype == "float32"}
            assert errors["gradients, whole batch"] < 1e-6
            assert errors["update, same gradients"] < 1e-6
            (left_out,) = [proof for proof in found if proof.dtype == "float64"]
            assert "in float32, so float64 is not compared" in left_out.note


@framework
@pytest.mark.ranks
@every_world
@every_stage
def test_parameters_and_losses_are_those_of_plain_ddp(stage: int, world_size: int) -> None:
    for own, ddp in zip(run(stage, world_size), run(None, world_size), strict=True):
        assert gap(own.parameters, ddp.parameters) <= TOLERANCE
        assert own.losses == pytest.approx(ddp.losses, rel=TOLERANCE)
        assert own.random == ddp.random


def clips(patch: pytest.MonkeyPatch) -> None:
    _with_settings(patch, gradient_clipping=0.01)


def adds_up(patch: pytest.MonkeyPatch) -> None:
    """Sum instead of averaging."""
    _with_settings(patch, gradient_allreduce_op="sum")


def accumulates(patch: pytest.MonkeyPatch) -> None:
    """Make no update after the first batch, which counts for half."""
    _with_settings(patch, gradient_accumulation_steps=2)


def _with_settings(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    from ddpbench.strategies.frameworks.deepspeed import replica

    right = replica.settings_of
    patch.setattr(replica, "settings_of", lambda job, options: right(job, options) | changed)


@framework
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("plant", "caught"),
    [
        (clips, {"update, same gradients"}),
        (adds_up, {"gradients, same shards", "gradients, whole batch"}),
    ],
)
def test_what_deepspeed_does_behind_one_s_back_is_caught(plant: Plant, caught: set[str]) -> None:
    cases = [case_of("deepspeed", 2, "cnn:small", zero_stage=stage) for stage in (0, 1, 2)]
    for rank in run_ranks(proofs, 2, cases, plant):
        assert [broken(found) for found in rank] == [{*caught, "parameters, same samples"}] * len(cases)


@framework
@pytest.mark.ranks
def test_an_update_that_does_not_come_is_caught() -> None:
    (rank,) = run_ranks(proofs, 1, [case_of("deepspeed", 1, "cnn:small", zero_stage=0)], accumulates)
    assert "update, same gradients" in broken(rank[0])


@framework
@pytest.mark.ranks
@every_world
@every_stage
def test_a_rank_holds_what_its_stage_leaves_it(stage: int, world_size: int) -> None:
    # ZeRO's arithmetic (Rajbhandari et al., section 3), SGD with momentum: stage 1 leaves an n-th of the momenta, and
    # of the weights that are updated, which are a copy; stage 2 an n-th of the gradients too.
    runs = run(stage, world_size)
    whole = sum(value.numel() * value.element_size() for value in runs[0].parameters.values())
    share = whole / world_size
    for rank in runs:
        parameters, gradients, state = rank.held
        assert parameters == whole
        assert state == pytest.approx(2 * share if stage else whole, rel=1e-3)
        if stage != 1:
            assert gradients == pytest.approx(share if stage else whole, rel=1e-3)


@framework
@pytest.mark.ranks
@every_stage
def test_it_leaves_nothing_behind(stage: int, tmp_path: Path) -> None:
    (own,) = run_ranks(trained, 1, case_of("deepspeed", 1, zero_stage=stage), tmp_path)
    assert own.written == set()
    assert own.environment == {}
    assert (own.attributes, own.of_model, own.hooks) == (set(), set(), 0)
    for name, value in own.parameters.items():
        assert torch.equal(own.closed[name], value), name


@framework
@pytest.mark.ranks
@every_stage
def test_spans_and_transfers_are_noted(stage: int) -> None:
    runs = run(stage, 2, True)
    whole = sum(value.numel() * value.element_size() for value in runs[0].parameters.values())
    for rank in runs:
        steps = steps_of(rank)
        assert len(steps) == STEPS
        for step, transfers in steps:
            names = {name for name, _, _ in step.spans}
            assert names == {"data", "forward", "backward", "synchronize", "optimizer"}
            blocked = [(start, end) for name, start, end in step.spans if name == "synchronize"]
            assert [(one.start_ns, one.end_ns) for one in transfers] == blocked
            assert [one.bucket for one in transfers] == list(range(len(transfers)))
            # Buckets are reduced; then the norm, a number, is summed, and the parameters are gathered.
            assert [(one.op, one.bytes) for one in transfers] == [
                ("all_reduce", whole),
                *([("all_reduce", 4), ("all_gather", whole)] if stage else []),
            ]


@framework
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"precision": "bf16"},
            "supports neither DeepSpeed's mixed precision nor autocast within its engine",
        ),
        ({"dtype": "bfloat16"}, 'dtype = "float32"'),
        ({"compute": "median"}, "a replay"),
        ({"local_batch": 3, "options_json": '{"accumulate": 2}'}, "does not divide"),
        ({"options_json": '{"zero_stage": 0, "overlap_comm": true}'}, "leave out overlap_comm"),
    ],
)
def test_what_it_cannot_run_is_said(changes: dict[str, Any], words: str) -> None:
    case = Case(**{"workload": "mlp:small", "strategy": "deepspeed", "world_size": 2, **changes})
    assert words in str(DEEPSPEED.check(case))


def test_a_missing_deepspeed_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpbench.strategies.frameworks import installed

    case = Case(workload="mlp:small", strategy="deepspeed")
    monkeypatch.setattr(installed, "_importable", lambda module: module != "deepspeed")
    assert "pip install 'ddpbench[deepspeed]'" in str(DEEPSPEED.check(case))
    assert "no step()" in str(DEEPSPEED.step_reason(case))
    assert "sparse=True" in str(DEEPSPEED.model_reason(case, closure="", sparse=True))


@pytest.mark.framework("hf_trainer", "deepspeed")
@pytest.mark.multiprocess
def test_a_sweep_beside_ddp_comes_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpbench.launch.listener import Listener
    from ddpbench.launch.sweep.preparation import SweepRequest, prepare
    from ddpbench.launch.sweep.sweep import Sweep
    from ddpbench.report import write_report

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(elsewhere))
    (tmp_path / "frameworks.toml").write_text(
        """
question = "What does a framework around DDP cost?"
[base]
workload = "cnn:small"
world_size = 2
local_batch = 4
[axes]
strategy = ["ddp", "hf_trainer", "deepspeed"]
[budget]
rounds_min = 2
rounds_max = 2
measured_s = "100 ms"
""",
        encoding="utf-8",
    )
    request = SweepRequest(experiment=tmp_path / "frameworks.toml", out=tmp_path / "run")
    run: RunDir = Sweep(prepare(request), Listener()).run().run
    assert os.listdir(elsewhere) == []  # noqa: PTH208
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    write_report(summarize(run), run)
    frame = load(run).set_index("strategy")
    assert list(frame.loc[["ddp", "hf_trainer", "deepspeed"], "status"]) == ["ok"] * 3
    for column in ("forward_time_s", "backward_time_s", "optimizer_time_s", "comm_time_s"):
        assert (frame.loc[["hf_trainer", "deepspeed"], column] > 0).all(), column
    assert "HF Trainer" in (run.path / "report.html").read_text(encoding="utf-8")
