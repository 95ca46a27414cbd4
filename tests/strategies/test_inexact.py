"""PowerSGD and post-local SGD on real ranks: what they send, when ranks agree, and what happens to the rest."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import StepRecorder
from ddpbench.records import CommRecord, StepRecord
from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.strategies.base import CompensatedReplica
from tests.ranks import run_ranks
from tests.strategies.test_aggregation import LAYERS, by_step
from tests.strategies.training import (
    LEARNING_RATE,
    MOMENTUM,
    STEPS,
    Run,
    bit_equal,
    build,
    make_model,
    reference,
    relative_error,
    shard,
    three_runs,
)

pytestmark = pytest.mark.ranks

POWER = {"compression": "powersgd"}
START = 2
PERIOD = 2
LOCAL = {"period": PERIOD, "start_local_sgd_iter": 1}
PAYLOAD_BYTES = 8 * sum(inputs + outputs + outputs for inputs, outputs in LAYERS)
"""Bytes of one step at rank 1, in float64: a column of each layer's rows, one of its columns, and the bias in full."""


@cache
def runs(strategy: str, world_size: int, schedule: str = "") -> list[tuple[Run, Run, Run]]:
    options = POWER if strategy == "ddp" else LOCAL
    settings = {"schedule": schedule} if schedule else None
    return run_ranks(three_runs, world_size, strategy, world_size, options, 600 / 2**20, settings)


def summed(rank: int, processes: int, matrix_rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return four compressed steps' gradients on one batch, summed; and what this rank has kept after them."""
    model = make_model()
    how: dict[str, Any] = {"rank": rank, "world_size": processes, "bucket_cap_mb": 600 / 2**20}
    replica = build("ddp", model, options={**POWER, "matrix_approximation_rank": matrix_rank}, **how)
    assert isinstance(replica, CompensatedReplica)
    total = [torch.zeros_like(each) for each in model.parameters() if each.requires_grad]
    for step in range(START + 4):
        replica.gradients_of(*shard(rank, 0))
        if step >= START:
            total = [a + b for a, b in zip(total, replica.gradients(), strict=True)]
        replica.optimizer.zero_grad()
    kept = replica.kept()
    parts = [kept[name].clone() for name, each in model.named_parameters() if each.requires_grad]
    replica.close()
    return total, parts


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_powersgd_loses_nothing_for_good(world_size: int) -> None:
    correct = [4 * gradient for gradient in reference(world_size, 1).gradients[0]]
    ranks = run_ranks(summed, world_size, 1)
    for total, _ in ranks:
        assert relative_error(total, correct) > 1e-3  # otherwise nothing was compressed
        kept = [sum(parts) / world_size for parts in zip(*(parts for _, parts in ranks), strict=True)]
        whole = [a + b for a, b in zip(total, kept, strict=True)]
        assert relative_error(whole, correct) <= 1e-10


def test_powersgd_of_full_rank_is_exact_where_it_pays_to_compress() -> None:
    # A layer of 24 x 6 has rank 6, and 6 * (24 + 6) elements are more than 144: sent as it is, as all others are.
    for total, _ in run_ranks(summed, 2, 16):
        assert relative_error(total, [4 * gradient for gradient in reference(2, 1).gradients[0]]) <= 1e-10


@pytest.mark.parametrize("schedule", ["overlapped", "after_backward"])
def test_powersgd_sends_products_once_buckets_are_settled(schedule: str) -> None:
    ranks = runs("ddp", 3, schedule)
    for plain, noted, again in ranks:
        assert plain.ready == noted.ready == [step > START - 1 for step in range(STEPS)]
        for step, (_, spans, transfers) in enumerate(by_step(noted)):
            sent = sum(transfer.bytes for transfer in transfers)
            assert {transfer.op for transfer in transfers} == {"powersgd"}
            assert (sent == PAYLOAD_BYTES) is (step >= START)
            assert max(transfer.end_ns for transfer in transfers) <= spans["synchronize"][1]
            assert bit_equal(plain.gradients[step], again.gradients[step])
        for other in ranks[1:]:
            assert bit_equal(plain.parameters, other[0].parameters)
    first = reference(3).gradients
    assert all(relative_error(ranks[0][0].gradients[step], first[step]) <= 1e-10 for step in range(START))


def apart(world_size: int) -> list[list[list[torch.Tensor]]]:
    """Run post-local SGD in one process; return each rank's parameters after every step."""
    models = [make_model() for _ in range(world_size)]
    trained = [[each for each in model.parameters() if each.requires_grad] for model in models]
    momenta = [[torch.zeros_like(each) for each in parameters] for parameters in trained]
    after = []
    for step in range(STEPS):
        gradients = [
            torch.autograd.grad(torch.nn.functional.cross_entropy(model(x), y), parameters)
            for rank, (model, parameters) in enumerate(zip(models, trained, strict=True))
            for x, y in [shard(rank, step)]
        ]
        if step < LOCAL["start_local_sgd_iter"]:
            together = [sum(parts) / world_size for parts in zip(*gradients, strict=True)]
            gradients = [together] * world_size  # type: ignore[list-item]
        with torch.no_grad():
            for parameters, momentum, own in zip(trained, momenta, gradients, strict=True):
                for parameter, memory, gradient in zip(parameters, momentum, own, strict=True):
                    memory.mul_(MOMENTUM).add_(gradient)
                    parameter -= LEARNING_RATE * memory
            since = step - LOCAL["start_local_sgd_iter"]
            if since >= 0 and since % PERIOD == 0:
                for parts in zip(*trained, strict=True):
                    average = sum(part.clone() for part in parts) / world_size
                    for part in parts:
                        part.copy_(average)
        after.append([[each.detach().clone() for each in model.parameters()] for model in models])
    return [[step[rank] for step in after] for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_post_local_sgd_is_training_apart_and_averaging(world_size: int) -> None:
    expected = apart(world_size)
    assert not bit_equal(expected[0][1 + PERIOD - 1], expected[1][1 + PERIOD - 1])  # apart in between
    ranks = runs("post_local_sgd", world_size)
    for rank, (plain, _, again) in enumerate(ranks):
        assert relative_error(plain.parameters, expected[rank][-1]) <= 1e-10
        assert bit_equal(plain.parameters, again.parameters)
        assert plain.ready == [step > 1 for step in range(STEPS)]  # asked for before the update


def averagings(rank: int, processes: int, nodes: int = 1, **options: Any) -> list[CommRecord]:
    """Return the transfers of full steps, updates included."""
    recorder = StepRecorder(HostClock())
    options = {**LOCAL, **options}
    replica = build(
        "post_local_sgd",
        make_model(),
        recorder,
        rank=rank,
        world_size=processes,
        options=options,
        nodes=nodes,
    )
    for step in range(STEPS):
        recorder.begin_step(step)
        replica.gradients_of(*shard(rank, step))
        replica.apply()
        recorder.end_step()
    replica.close()
    records = recorder.records()
    for record in records:
        if isinstance(record, StepRecord):
            moments = [(start, end) for _, start, end in record.spans]
            assert all(a[1] <= b[0] for a, b in pairwise(moments))
    return [record for record in records if isinstance(record, CommRecord)]


def test_post_local_sgd_averages_parameters_every_period() -> None:
    size = 8 * sum(inputs * outputs + outputs for inputs, outputs in LAYERS)
    expected = [(0, "all_reduce"), *((step, "all_reduce") for step in range(1, STEPS, PERIOD))]
    for found in run_ranks(averagings, 2):
        assert [(one.step, one.op, one.bytes) for one in found] == [(step, op, size) for step, op in expected]


def nodes_apart(rank: int, processes: int) -> list[CommRecord]:
    """Two nodes, each of which also aggregates gradients among its ranks."""
    return averagings(rank, processes, nodes=2, within_nodes=True)


def test_what_nodes_aggregate_apart_are_transfers_of_their_own() -> None:
    """All ranks' gradients, then a node's and the average of all; a node's gradients; groups share no number."""
    for rank, found in enumerate(run_ranks(nodes_apart, 4)):
        noted = [(one.step, one.bucket, one.ranks) for one in found if one.step < 3]
        assert noted == [(0, 0, None), (1, rank // 2, 2), (1, 2, None), (2, rank // 2, 2)]


@pytest.mark.parametrize(
    ("strategy", "settings", "words"),
    [
        ("ddp", {"dtype": "bfloat16", "options_json": '{"compression": "powersgd"}'}, "bfloat16"),
        ("ddp", {"precision": "fp16", "options_json": '{"compression": "powersgd"}'}, "infinity"),
        ("ddp", {"algorithm": "ring", "options_json": '{"compression": "powersgd"}'}, "no ring"),
        ("post_local_sgd", {"world_size": 1}, "one rank has no other to average with"),
        ("post_local_sgd", {"precision": "fp16", "world_size": 2}, "skip different updates"),
    ],
)
def test_what_cannot_run_is_refused(strategy: str, settings: dict[str, Any], words: str) -> None:
    reason = load_strategy(strategy).check(Case(workload="mlp:small", strategy=strategy, **settings))
    assert reason is not None
    assert words in reason
