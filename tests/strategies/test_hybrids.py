"""Replicas of shards and of pipelines on real ranks, against one process that trains alike; and faulty ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from ddpbench.analysis.read.overlap import breakdown
from ddpbench.analysis.read.parts import RankSteps
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder, Recorder, StepRecorder
from ddpbench.records import CommRecord, StepRecord
from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.strategies.pipeline.replica import dealt
from tests.ranks import run_ranks
from tests.strategies import sharding
from tests.strategies.test_pieces import (
    LAYER_WIDTHS,
    STEPS,
    Row,
    Seen,
    assert_equal,
    batch,
    build,
    make_model,
)
from tests.strategies.training import bit_equal

pytestmark = pytest.mark.ranks

LAYOUTS = ((4, 2), (6, 3))
"""Ranks, and the number of replicas of two ranks each."""
ORDERS = ("gpipe", "1f1b")
MICROBATCHES = {2: 4, 3: 2}
"""Microbatches by replicas, each of two or three samples."""
BATCHES = {2: 16, 3: 18}

every_layout = pytest.mark.parametrize(("world_size", "replicas"), LAYOUTS)
every_order = pytest.mark.parametrize("order", ORDERS)


# Shards


@cache
def sharded(world_size: int, replicas: int, again: bool) -> list[tuple[sharding.Seen, ...]]:
    options = {"replicas": replicas, "reshard_after_forward": again}
    return run_ranks(sharding.runs, world_size, "fsdp", options, "adamw", torch.float64)


@every_layout
def test_replicas_of_shards_train_as_one_process_does(world_size: int, replicas: int) -> None:
    expected = sharding.one_process(world_size, "adamw", torch.float64)
    for rank, seen in enumerate(sharded(world_size, replicas, True)):
        for own, correct in zip(seen, expected, strict=True):  # two runs use the module of the previous one
            for mine, its in zip(own.gradients, correct.gradients, strict=False):
                assert_equal(mine, its)
            assert_equal(own.parameters, correct.parameters)
            if rank == 0:
                assert own.losses == pytest.approx(correct.losses, rel=1e-10)
        assert len(seen[0].gradients) == sharding.STEPS


@every_layout
def test_a_rank_holds_a_shard_of_its_replica_alone(world_size: int, replicas: int) -> None:
    every = list(sharding.make_stack().parameters())
    rows = [(len(each) + 1) // 2 for each in every]  # the first of two ranks has one more
    for rank, (plain, _, _) in enumerate(sharded(world_size, replicas, True)):
        own = [
            (count if rank % 2 == 0 else len(each) - count) * each[0].numel()
            for count, each in zip(rows, every, strict=True)
        ]
        assert plain.held[0] == 8 * sum(own)


def sends_of(records: Sequence[Any], step: int) -> list[CommRecord]:
    return [one for one in records if isinstance(one, CommRecord) and one.step == step]


@pytest.mark.parametrize("again", [True, False])
@every_layout
def test_shards_are_gathered_in_a_replica_and_reduced_between_them(
    world_size: int, replicas: int, again: bool
) -> None:
    model = sharding.make_stack()
    blocks = [padded(block.parameters()) for block in model.blocks]
    inside = {id(each) for block in model.blocks for each in block.parameters()}
    rest = [each for each in model.parameters() if id(each) not in inside]
    root, trained = padded(rest), padded(each for each in rest if each.requires_grad)
    first = sharding.STEPS
    ranks = sharded(world_size, replicas, again)
    for step in range(first, first + sharding.STEPS):
        groups: dict[tuple[str, int], list[int]] = {}
        for rank, (_, noted, _) in enumerate(ranks):
            sent = sends_of(noted.records, step)
            found = {op: sorted(one.bytes for one in sent if one.op == op) for op in {one.op for one in sent}}
            assert found == {
                "all_gather": sorted([root, *blocks, *(blocks if again else [])]),
                "reduce_scatter": sorted([trained, *blocks]),
                "all_reduce": sorted(size // 2 for size in [trained, *blocks]),  # a shard's
            }
            assert {(one.op, one.ranks) for one in sent} == {
                ("all_gather", 2),
                ("reduce_scatter", 2),
                ("all_reduce", replicas),
            }
            for one in sent:
                groups.setdefault((one.op, one.bucket), []).append(rank)
        for (op, _), taking_part in groups.items():
            if op == "all_reduce":
                assert set(taking_part) in [set(range(shard, world_size, 2)) for shard in (0, 1)]
            else:
                assert set(taking_part) in [{rank, rank + 1} for rank in range(0, world_size, 2)]


def padded(parameters: Any) -> int:
    """Return the bytes of tensors whose rows are padded to divide by two."""
    return sum(8 * ((len(each) + 1) // 2 * 2) * each[0].numel() for each in parameters)


@every_layout
def test_what_replicas_of_shards_exchange_blocks_a_rank(world_size: int, replicas: int) -> None:
    ranks = {}
    for rank, (_, noted, _) in enumerate(sharded(world_size, replicas, True)):
        steps = [one for one in noted.records if isinstance(one, StepRecord)]
        moved = [one for one in noted.records if isinstance(one, CommRecord)]
        for step in steps:
            blocked = [(start, end) for name, start, end in step.spans if name == "synchronize"]
            assert {(one.start_ns, one.end_ns) for one in moved if one.step == step.step} <= set(blocked)
            moments = [moment for _, start, end in step.spans for moment in (start, end)]
            assert moments == sorted(moments)
        ranks[rank] = RankSteps(steps, moved, "here")
    found = breakdown([ranks], world_size)
    assert found is not None
    assert found.dropped_transfers == 0
    assert found.exposed_s > 0
    assert found.overlapped_s == 0
    taking_part = {
        (op, moved.ranks) for sizes in found.transfers.values() for (op, _), moved in sizes.items()
    }
    assert taking_part == {("all_gather", 2), ("reduce_scatter", 2), ("all_reduce", replicas)}


def kept(rank: int, processes: int, breaks: str) -> dict[str, torch.Tensor]:
    """Return what a rank keeps of a model's parameters."""
    if breaks == "across":
        import ddpbench.strategies.fsdp.replica as fsdp

        def across(kind: str, shape: tuple[int, int], *, mesh_dim_names: tuple[str, str]) -> Any:
            ranks = torch.arange(processes).view(*shape[::-1]).T
            return fsdp.DeviceMesh(kind, ranks, mesh_dim_names=mesh_dim_names)

        fsdp.init_device_mesh = across  # type: ignore[attr-defined, assignment]
    model = sharding.make_stack()
    job = build("fsdp", model, rank, processes, {"replicas": 2}, NullRecorder()).job
    return {name: each.to_local().detach() for name, each in job.model.named_parameters()}  # type: ignore[operator]


def alike(ranks: Sequence[dict[str, torch.Tensor]]) -> set[tuple[int, int]]:
    """Return the pairs of ranks that keep the same shards."""
    return {
        (a, b)
        for a, b in itertools.combinations(range(len(ranks)), 2)
        if all(torch.equal(ranks[a][name], ranks[b][name]) for name in ranks[a])
    }


@pytest.mark.parametrize(("breaks", "same"), [("", {(0, 2), (1, 3)}), ("across", {(0, 1), (2, 3)})])
def test_neighbours_hold_the_shards_of_a_replica(breaks: str, same: set[tuple[int, int]]) -> None:
    assert alike(run_ranks(kept, 4, breaks)) == same


# Pipelines


def share_of(step: int, pipeline: int, replicas: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a pipeline's share of a step's batch."""
    size = BATCHES[replicas] // replicas
    inputs, targets = (
        torch.cat(both)[: BATCHES[replicas]] for both in zip(batch(step), batch(1000 + step), strict=True)
    )
    mine = slice(pipeline * size, (pipeline + 1) * size)
    return inputs[mine], targets[mine]


def train(rank: int, count: int, model: nn.Module, options: dict[str, Any], recorder: Recorder) -> Seen:
    replica = build("pipeline", model, rank, count, options, recorder)
    seen = Seen(draws=replica.draws, knows_loss=replica.knows_loss)
    pipeline = rank // (count // options["replicas"])
    for step in range(STEPS):
        torch.manual_seed(step)
        if isinstance(recorder, StepRecorder):
            recorder.begin_step(step)
        own = share_of(step, pipeline, options["replicas"])
        seen.losses.append(float(replica.gradients_of(*(own if replica.draws else (None, None)))))
        if isinstance(recorder, StepRecorder):
            recorder.end_step()
        seen.gradients.append({name: each.clone() for name, each in replica.own_gradients().items()})
        seen.held = replica.held_bytes()
        replica.apply()
    seen.parameters = replica.own_parameters()
    seen.buffers = {name: each.clone() for name, each in model.named_buffers()}
    seen.kept = int(replica.ready())
    if isinstance(recorder, StepRecorder):
        records = recorder.records()
        seen.steps = [each for each in records if isinstance(each, StepRecord)]
        seen.transfers = [each for each in records if isinstance(each, CommRecord)]
    replica.close()
    return seen


def plain_and_noted(rank: int, count: int, options: dict[str, Any]) -> tuple[Seen, Seen]:
    """Train twice, the second time instrumented and on the first one's model, as in a launch."""
    model = make_model("pipeline", count)
    start = {name: each.clone() for name, each in model.state_dict().items()}
    plain = train(rank, count, model, options, NullRecorder())
    with torch.no_grad():
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            if each.shape == start[name].shape:
                each.copy_(start[name])
    return plain, train(rank, count, model, options, StepRecorder(HostClock()))


@cache
def pipelines(world_size: int, replicas: int, order: str) -> list[tuple[Seen, Seen]]:
    options = {"order": order, "microbatches": MICROBATCHES[replicas], "replicas": replicas}
    return run_ranks(plain_and_noted, world_size, options)


@cache
def alone(replicas: int) -> tuple[Seen, list[dict[str, torch.Tensor]]]:
    """Train all pipelines' microbatches in one process, with SGD's formula; return it and each pipeline's buffers."""
    model = make_model("pipeline", 1)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    momenta = {name: torch.zeros_like(each) for name, each in trained.items()}
    buffers = [{name: each.clone() for name, each in model.named_buffers()} for _ in range(replicas)]
    count, seen = MICROBATCHES[replicas], Seen()
    for step in range(STEPS):
        sums = {name: torch.zeros_like(each) for name, each in trained.items()}
        losses = []
        for pipeline in range(replicas):
            torch.manual_seed(step)
            for name, each in model.named_buffers():
                each.copy_(buffers[pipeline][name])
            inputs, targets = share_of(step, pipeline, replicas)
            for own, wanted in zip(inputs.chunk(count), targets.chunk(count), strict=True):
                loss = nn.functional.cross_entropy(model(own), wanted)
                losses.append(float(loss.detach()))
                found = torch.autograd.grad(loss, list(trained.values()))
                for name, gradient in zip(trained, found, strict=True):
                    sums[name] += gradient / (count * replicas)
            buffers[pipeline] = {name: each.clone() for name, each in model.named_buffers()}
        seen.gradients.append(sums)
        seen.losses.append(sum(losses) / len(losses))
        with torch.no_grad():
            for name, parameter in trained.items():
                momenta[name].mul_(0.9).add_(sums[name])
                parameter -= 0.1 * momenta[name]
    seen.parameters = {name: each.detach() for name, each in trained.items()}
    return seen, buffers


@every_order
@every_layout
def test_pipelines_together_train_as_one_process_does(world_size: int, replicas: int, order: str) -> None:
    ranks, (expected, buffers) = pipelines(world_size, replicas, order), alone(replicas)
    for rank, (plain, _) in enumerate(ranks):
        for own, correct in zip(plain.gradients, expected.gradients, strict=True):
            assert_equal(own, correct)
        assert_equal(plain.parameters, expected.parameters)
        assert plain.kept  # it reports that its buckets are final
        own_layers = ("first", "second", "third") if rank % 2 == 0 else ("fourth", "last")
        assert_equal(
            {name: each.double() for name, each in plain.buffers.items() if name.startswith(own_layers)},
            {name: each.double() for name, each in buffers[rank // 2].items()},
        )
    last = [plain.losses for plain, _ in ranks if plain.knows_loss]
    assert len(last) == replicas
    means = [sum(losses) / replicas for losses in zip(*last, strict=True)]
    assert means == pytest.approx(expected.losses, rel=1e-10)


@every_layout
def test_every_pipeline_has_all_stages_and_takes_its_batch_at_its_ends(
    world_size: int, replicas: int
) -> None:
    ranks = [plain for plain, _ in pipelines(world_size, replicas, "gpipe")]
    whole = sorted(name for name, each in Row().named_parameters() if each.requires_grad)
    for first in range(0, world_size, 2):
        own = [name for plain in ranks[first : first + 2] for name in plain.parameters]
        assert sorted(own) == whole
        assert ranks[first].parameters.keys() == ranks[0].parameters.keys()
    assert [plain.draws for plain in ranks] == [True] * world_size
    assert [plain.knows_loss for plain in ranks] == [False, True] * replicas


@every_order
@every_layout
def test_noting_pipelines_changes_no_bit(world_size: int, replicas: int, order: str) -> None:
    for plain, noted in pipelines(world_size, replicas, order):
        assert plain.losses == noted.losses
        for own, other in zip(plain.gradients, noted.gradients, strict=True):
            assert bit_equal(list(own.values()), list(other.values()))


@every_order
@every_layout
def test_pipelines_send_what_a_formula_says_and_each_transfer_is_whole(
    world_size: int, replicas: int, order: str
) -> None:
    ranks = [noted for _, noted in pipelines(world_size, replicas, order)]
    boundary = LAYER_WIDTHS[dealt(5, 2)[0][-1]]
    share = BATCHES[replicas] // replicas
    trained = {name: 8 * each.numel() for name, each in Row().named_parameters() if each.requires_grad}
    for step in range(STEPS):
        for noted in ranks:
            sent = [one for one in noted.transfers if one.step == step]
            messages = [one for one in sent if one.op == "send"]
            reduced = [one for one in sent if one.op == "all_reduce"]
            assert len(messages) + len(reduced) == len(sent)
            assert sum(one.sent_bytes or 0 for one in messages) == 8 * share * boundary
            assert {one.ranks for one in reduced} == {replicas}
            assert sum(one.bytes for one in reduced) == sum(trained[name] for name in noted.parameters)
            (own,) = [one for one in noted.steps if one.step == step]
            backwards = [(start, end) for name, start, end in own.spans if name == "backward"]
            # Buckets leave within the last microbatch's backward, or at its end; then gradients are divided.
            last = backwards[-2]
            assert all(last[0] <= one.start_ns <= last[1] for one in reduced)
    columns = {rank: RankSteps(noted.steps, noted.transfers, "here") for rank, noted in enumerate(ranks)}
    found = breakdown([columns], world_size)
    assert found is not None
    assert found.dropped_transfers == 0
    (sizes,) = found.transfers.values()
    counts = {op: sum(moved.count for (name, _), moved in sizes.items() if name == op) for op, _ in sizes}
    buckets = len([one for one in ranks[0].transfers if one.op == "all_reduce"])
    others = len([one for one in ranks[1].transfers if one.op == "all_reduce"])
    assert counts == {
        "send": STEPS * 2 * MICROBATCHES[replicas] * replicas,  # each message of all pipelines, counted once
        "all_reduce": buckets + others,
    }


@every_order
def test_spans_of_pipelines_follow_each_other_within_their_step(order: str) -> None:
    for _, noted in pipelines(4, 2, order):
        assert len(noted.steps) == STEPS
        for step in noted.steps:
            moments = [step.start_ns, *(t for _, start, end in step.spans for t in (start, end)), step.end_ns]
            assert moments == sorted(moments)


# Proofs


def proofs(
    rank: int, processes: int, strategy: str, options: dict[str, Any], workload: str, breaks: str
) -> dict[str, bool] | str:
    """Return what a case's proof compares, and whether it passed in every type; or why nothing was proved."""
    from ddpbench.records import Proof
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.control import GroupControl
    from ddpbench.worker.training.training import Training
    from ddpbench.worker.verify.proof import Prover

    _break(breaks)
    chosen = load_strategy(strategy)
    case = Case(
        workload=workload,
        strategy=strategy,
        algorithm=chosen.algorithm,
        schedule=chosen.schedule,
        options_json=chosen.options.model_validate(options).model_dump_json(),
        world_size=processes,
        local_batch=4,
        global_batch=4 * processes,
    )
    assert chosen.check(case) is None
    place = JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    training = Training(case, place, torch.device("cpu"))
    control = GroupControl(torch.distributed.new_group(), rank)
    found: dict[str, bool] = {}
    try:
        for record in Prover(training, control, lambda: None).run():
            if isinstance(record, Proof):
                assert not record.note or not record.passed
                found[record.compared] = found.get(record.compared, True) and record.passed
    except ValueError as error:
        return str(error)
    return found


def _break(what: str) -> None:
    from ddpbench.strategies.fsdp.replica import FsdpReplica
    from ddpbench.strategies.pipeline.replica import PipelineReplica
    from ddpbench.strategies.pipeline.strategy import Pipeline

    if what == "stages not averaged":
        PipelineReplica._averaging = lambda self, *_: None  # type: ignore[method-assign, assignment, return-value]
    elif what == "shards not averaged":
        right = torch.distributed.all_reduce

        def none_between_two(tensor: Any, *arguments: Any, group: Any = None, **settings: Any) -> Any:
            if group is None or group.size() > 2:
                return right(tensor, *arguments, group=group, **settings)
            return None

        torch.distributed.all_reduce = none_between_two
    elif what == "averaged twice":
        for replica in (PipelineReplica, FsdpReplica):
            _divide_again(replica)
    elif what == "one share for all":
        Pipeline.dealt = lambda self, case, rank: (0, case.options["replicas"])  # type: ignore[method-assign]
    elif (
        what == "shares in turn"
    ):  # the first stage's inputs and the last's targets belong to different samples
        Pipeline.dealt = lambda self, case, rank: (rank % 2, 2)  # type: ignore[method-assign]


def _divide_again(replica: Any) -> None:
    right = replica.gradients_of

    def gradients_of(self: Any, inputs: Any, targets: Any) -> torch.Tensor:
        loss: torch.Tensor = right(self, inputs, targets)
        for parameter in self.job.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= 2
        return loss

    replica.gradients_of = gradients_of


SETUPS: list[tuple[str, dict[str, Any], str]] = [
    ("fsdp", {"replicas": 2}, "gpt:nano"),
    ("fsdp", {"replicas": 2, "wrap": "whole"}, "mlp:small"),
    ("pipeline", {"replicas": 2}, "mlp:small"),
    ("pipeline", {"replicas": 2, "order": "1f1b", "microbatches": 2}, "mlp:small"),
]
"""Strategy, options, and the workload that is always proved; the other workload is thorough."""


@pytest.mark.parametrize(
    ("strategy", "options", "workload"),
    [
        pytest.param(strategy, options, workload, marks=[] if workload == always else pytest.mark.thorough)
        for strategy, options, always in SETUPS
        for workload in ("mlp:small", "gpt:nano")
    ],
)
def test_hybrids_are_proved(strategy: str, options: dict[str, Any], workload: str) -> None:
    for found in run_ranks(proofs, 4, strategy, options, workload, ""):
        assert all(found.values())
        assert found.keys() >= {
            "gradients, same shards",
            "gradients, whole batch",
            "update, same gradients",
            "parameters, same samples",
        }


WRONG = {"gradients, same shards", "gradients, whole batch", "parameters, same samples"}


@pytest.mark.parametrize(
    ("strategy", "breaks"),
    [
        pytest.param("pipeline", "stages not averaged", marks=pytest.mark.thorough),
        ("pipeline", "averaged twice"),
        ("pipeline", "shares in turn"),
        ("fsdp", "shards not averaged"),
        pytest.param("fsdp", "averaged twice", marks=pytest.mark.thorough),
    ],
)
def test_a_hybrid_that_aggregates_wrongly_is_seen(strategy: str, breaks: str) -> None:
    for found in run_ranks(proofs, 4, strategy, {"replicas": 2}, "mlp:small", breaks):
        assert {compared for compared, passed in found.items() if not passed} == WRONG


def test_pipelines_that_are_all_dealt_the_same_share_are_refused() -> None:
    for found in run_ranks(proofs, 4, "pipeline", {"replicas": 2}, "mlp:small", "one share for all"):
        assert found == (
            "pipeline divides a step's samples into 2 parts, but its ranks take only some (0): see its dealt()"
        )
