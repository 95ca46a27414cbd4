"""Strategies that divide the model's state, on real ranks, against the same training in one process."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

from ddpbench.analysis.read.overlap import breakdown
from ddpbench.analysis.read.parts import RankSteps
from ddpbench.launch.catalog import TableCatalog
from ddpbench.records import COMPUTE_SPANS, CommRecord, StepRecord
from ddpbench.spec import Case, Devices, expand, parse_experiment
from ddpbench.strategies import load_strategy
from tests.ranks import run_ranks
from tests.strategies.sharding import STEPS, Seen, Values, left_out, make_stack, one_process, overflowed, runs

SETUPS: dict[str, tuple[str, dict[str, Any], str, torch.dtype]] = {
    "zero1": ("zero1", {}, "adamw", torch.float64),
    "zero1, views, two groups": (
        "zero1",
        {"parameters_as_bucket_view": True, "gradient_as_bucket_view": True},
        "two_groups",
        torch.float64,
    ),
    "fsdp": ("fsdp", {}, "adamw", torch.float64),
    "fsdp, kept": ("fsdp", {"reshard_after_forward": False}, "adamw", torch.float64),
    "fsdp, whole, two groups": ("fsdp", {"wrap": "whole"}, "two_groups", torch.float64),
    "fsdp, float32": ("fsdp", {}, "adamw", torch.float32),  # asked for an average, gloo returned the sum
}
WORLD_SIZES = (2, 3, 4)
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}

every_world = pytest.mark.parametrize(
    "world_size", [*WORLD_SIZES[:-1], pytest.param(WORLD_SIZES[-1], marks=pytest.mark.thorough)]
)
every_setup = pytest.mark.parametrize("setup", SETUPS)
every_fsdp = pytest.mark.parametrize("setup", [name for name in SETUPS if name.startswith("fsdp")])
every_zero1 = pytest.mark.parametrize("setup", [name for name in SETUPS if name.startswith("zero1")])


@cache
def seen(setup: str, world_size: int) -> list[tuple[Seen, Seen, Seen]]:
    return run_ranks(runs, world_size, *SETUPS[setup])


@cache
def expected(setup: str, world_size: int) -> list[Seen]:
    _, _, optimizer, dtype = SETUPS[setup]
    return one_process(world_size, optimizer, dtype)


def error(own: Values, correct: Values) -> float:
    """Return the largest relative error over tensors, by their norms."""
    assert own.keys() == correct.keys()
    norm = torch.linalg.vector_norm
    return max(float(norm(own[name] - correct[name]) / norm(correct[name])) for name in correct)


@pytest.mark.ranks
@every_world
@every_setup
def test_gradients_losses_and_parameters_are_those_of_one_process(setup: str, world_size: int) -> None:
    allowed = TOLERANCES[SETUPS[setup][3]]
    for rank, replicas in enumerate(seen(setup, world_size)):
        # the second and third are replicas on the module that the previous one left
        for own, correct in zip(replicas, expected(setup, world_size), strict=True):
            for mine, its in zip(own.gradients, correct.gradients, strict=False):
                assert error(mine, its) <= allowed
            assert error(own.parameters, correct.parameters) <= allowed
            if rank == 0:
                assert own.losses == pytest.approx(correct.losses, rel=allowed)
        assert len(replicas[0].gradients) == len(replicas[2].gradients) == STEPS


@pytest.mark.ranks
@every_world
@every_zero1
def test_zero1_leaves_replicas_bit_equal(setup: str, world_size: int) -> None:
    first, *others = seen(setup, world_size)
    for other in others:
        for mine, its in zip(first, other, strict=True):
            assert all(torch.equal(mine.parameters[name], its.parameters[name]) for name in mine.parameters)


@pytest.mark.ranks
def test_an_infinite_number_in_one_rank_s_shard_leaves_the_update_out_on_all() -> None:
    assert run_ranks(overflowed, 3, "fsdp") == [(True, True)] * 3


@pytest.mark.ranks
def test_fsdp_refuses_a_step_that_uses_other_blocks() -> None:
    for whole, evaluated, other in run_ranks(left_out, 2):
        assert not whole + evaluated
        assert "the model uses blocks.1 in only some steps" in other


def rows(length: int, rank: int, world_size: int) -> int:
    """Return the tensor's rows that torch.chunk gives a rank: as many as fit into equal parts, then fewer."""
    part = math.ceil(length / world_size)
    return max(0, min(part, length - rank * part))


@pytest.mark.ranks
@every_world
@pytest.mark.parametrize("setup", ["fsdp", "fsdp, kept", "fsdp, float32"])
def test_fsdp_holds_a_shard_of_everything(setup: str, world_size: int) -> None:
    # ZeRO's arithmetic (Rajbhandari et al., section 3): stage 3 leaves an n-th of parameters, gradients and Adam's
    # two moments; here in whole rows, so that the last ranks may have fewer; a step's count a tensor is not cut.
    dtype = SETUPS[setup][3]
    every = list(make_stack(dtype).parameters())
    size = dtype.itemsize
    for rank, (plain, _, again) in enumerate(seen(setup, world_size)):
        own = [rows(len(each), rank, world_size) * each[0].numel() for each in every]
        trained = [count for count, each in zip(own, every, strict=True) if each.requires_grad]
        correct = (size * sum(own), size * sum(trained), 2 * size * sum(trained) + 4 * len(trained))
        assert plain.held == again.held == correct
    totals = [
        sum(part) for part in zip(*(plain.held for plain, _, _ in seen(setup, world_size)), strict=True)
    ]
    assert totals[0] == size * sum(each.numel() for each in every)


@pytest.mark.ranks
@every_world
def test_zero1_shares_out_the_optimizer_s_state_alone(world_size: int) -> None:
    every = list(make_stack().parameters())
    trained = [each.numel() for each in every if each.requires_grad]
    states = []
    for plain, _, _ in seen("zero1", world_size):
        parameters, gradients, state = plain.held
        assert parameters == 8 * sum(each.numel() for each in every)
        assert gradients == 8 * sum(trained)
        states.append(state)
    assert sum(states) == 16 * sum(trained) + 4 * len(trained)
    # an uneven division between tensors differs by at most the largest tensor
    counts = [each.numel() for each in every]
    assert max(states) <= 16 * (sum(counts) / world_size + max(counts)) + 4 * len(trained)
    assert max(states) < 16 * sum(trained)


def steps_of(run: Seen) -> list[tuple[StepRecord, list[CommRecord]]]:
    """Return an instrumented run's steps with their transfers."""
    steps = [record for record in run.records if isinstance(record, StepRecord)]
    moved = [record for record in run.records if isinstance(record, CommRecord)]
    assert len(steps) == STEPS
    return [(step, [one for one in moved if one.step == step.step]) for step in steps]


def padded(parameters: Any, world_size: int, size: int) -> int:
    """Return the bytes of tensors whose rows are padded to divide evenly."""
    return sum(size * math.ceil(len(each) / world_size) * world_size * each[0].numel() for each in parameters)


@pytest.mark.ranks
@every_world
@every_fsdp
def test_fsdp_gathers_parameters_and_scatters_gradients_block_by_block(setup: str, world_size: int) -> None:
    _, options, _, dtype = SETUPS[setup]
    model = make_stack(dtype)
    whole = {"blocks": [*model.blocks], "whole": []}[options.get("wrap", "blocks")]
    inside = {id(each) for block in whole for each in block.parameters()}
    rest = [each for each in model.parameters() if id(each) not in inside]
    size = dtype.itemsize
    parts = [padded(block.parameters(), world_size, size) for block in whole]
    root = padded(rest, world_size, size)
    trained = padded([each for each in rest if each.requires_grad], world_size, size)
    again = options.get("reshard_after_forward", True)
    gathered = sorted([root, *parts, *(([*parts] or [root]) if again else [])])
    for _, noted, _ in seen(setup, world_size):
        for step, transfers in steps_of(noted):
            by_op = {
                op: sorted(one.bytes for one in transfers if one.op == op) for op in {t.op for t in transfers}
            }
            assert by_op == {"all_gather": gathered, "reduce_scatter": sorted([trained, *parts])}
            backward = min(start for name, start, _ in step.spans if name == "backward")
            assert all(one.start_ns > backward for one in transfers if one.op == "reduce_scatter")
            early = [one for one in transfers if one.op == "all_gather" and one.start_ns < backward]
            assert len(early) == 1 + len(parts)


@pytest.mark.ranks
@every_world
@every_zero1
def test_zero1_reduces_to_all_and_then_broadcasts(setup: str, world_size: int) -> None:
    sizes = {each.numel() * 8 for each in make_stack().parameters()}
    for _, noted, _ in seen(setup, world_size):
        for step, transfers in steps_of(noted):
            sent = [one for one in transfers if one.op == "broadcast"]
            reduced = [one for one in transfers if one.op == "all_reduce"]
            assert len(sent) + len(reduced) == len(transfers)
            assert sorted(one.bucket for one in sent) == list(range(world_size))
            assert sum(one.bytes for one in sent) == sum(
                each.numel() * 8 for each in make_stack().parameters()
            )
            assert max(one.bytes for one in sent) >= max(sizes)
            update = next(start for name, start, _ in step.spans if name == "optimizer")
            assert max(one.end_ns for one in reduced) <= update <= min(one.start_ns for one in sent)


@pytest.mark.ranks
@every_world
@every_setup
def test_what_blocks_a_rank_is_no_computation_of_its_own(setup: str, world_size: int) -> None:
    ranks = {}
    for rank, (_, noted, _) in enumerate(seen(setup, world_size)):
        steps = steps_of(noted)
        for step, transfers in steps:
            computing = [(start, end) for name, start, end in step.spans if name in COMPUTE_SPANS]
            alone = [one for one in transfers if one.op != "all_reduce"]  # DDP's continue during backward
            assert alone
            for one in alone:
                assert all(one.end_ns <= start or end <= one.start_ns for start, end in computing)
            moments = [moment for _, start, end in step.spans for moment in (start, end)]
            assert moments == sorted(moments)
        ranks[rank] = RankSteps(
            [step for step, _ in steps], [one for _, sent in steps for one in sent], "here"
        )
    found = breakdown([ranks], world_size)
    assert found is not None
    assert found.dropped_transfers == 0
    assert found.exposed_s > 0
    if setup.startswith("fsdp"):
        assert found.overlapped_s == 0


def test_cases_that_cannot_be_sharded_are_skipped_in_the_plan_with_a_reason() -> None:
    text = """
        [base]
        workload = "mlp:small"
        [axes]
        strategy = ["fsdp", "zero1"]
        world_size = [1, 2]
    """
    experiment = parse_experiment(text, TableCatalog(), name="sharded")
    planned = expand(experiment, TableCatalog(), Devices(kind="cpu", gpus=0, cores=2))
    reasons = {(one.case.strategy, one.case.world_size): one.skip_reason for one in planned}
    assert reasons.pop(("fsdp", 1)) == "fsdp has nothing to shard over one rank: set world_size to 2 or more"
    assert set(reasons) == {("fsdp", 2), ("zero1", 1), ("zero1", 2), ("single", 1)}
    assert set(reasons.values()) == {None}


@pytest.mark.parametrize(
    ("world_size", "replicas", "refusal"),
    [
        (4, 2, None),
        (6, 3, None),
        (6, 2, None),
        (4, 3, "replicas = 3 does not divide 4 ranks evenly: set a number that does"),
        (2, 2, "2 replicas of one rank each are plain data parallelism"),
        (1, 2, "fsdp has nothing to shard over one rank"),
    ],
)
def test_replicas_have_two_ranks_or_more_to_shard_over(
    world_size: int, replicas: int, refusal: str | None
) -> None:
    options = f'{{"replicas": {replicas}}}'
    case = Case(workload="mlp", strategy="fsdp", world_size=world_size, options_json=options)
    reason = load_strategy("fsdp").check(case)
    assert reason is None if refusal is None else (reason or "").startswith(refusal)


@pytest.mark.parametrize("name", ["fsdp", "zero1"])
def test_a_replay_is_not_sharded(name: str) -> None:
    reason = load_strategy(name).check(
        Case(workload="replay:gpt", strategy=name, world_size=2, compute="replayed")
    )
    assert reason is not None
    assert "workload that computes" in reason


def test_fsdp_names_the_torch_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpbench.strategies.fsdp.strategy.version", lambda _: "2.5.1+cpu")
    reason = load_strategy("fsdp").check(Case(workload="mlp", strategy="fsdp", world_size=2))
    assert reason == "fsdp needs torch 2.9 or later; 2.5 is installed"
