"""The strategies that need no process group: `single`, `independent`, and `data_parallel`'s parts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ddpbench.measure.recorder import StepRecorder
from ddpbench.records import StepRecord
from ddpbench.strategies.base import Replica
from ddpbench.strategies.data_parallel import core_shares, replicate
from tests.fake_clock import FakeClock
from tests.strategies.training import (
    STEPS,
    bit_equal,
    build,
    make_model,
    reference,
    relative_error,
    shard,
    train,
)


@pytest.mark.parametrize("strategy", ["single", "independent"])
def test_one_rank_alone_trains_as_written_out(strategy: str) -> None:
    run = train(build(strategy, make_model()), [shard(0, step) for step in range(STEPS)])
    correct = reference(1)
    assert relative_error(run.parameters, correct.parameters) <= 1e-10
    assert run.losses == pytest.approx([losses[0] for losses in correct.losses], rel=1e-10)
    assert run.buckets == [None] * STEPS
    assert all(run.ready)


def test_independent_ranks_aggregate_nothing() -> None:
    ranks = [
        train(build("independent", make_model(), rank=rank, world_size=2), [shard(rank, 0)])
        for rank in range(2)
    ]
    for rank, run in enumerate(ranks):
        model = make_model()
        inputs, targets = shard(rank, 0)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        own = [p.grad for p in model.parameters() if p.grad is not None]
        assert relative_error(run.gradients[0], own) <= 1e-10
    assert not bit_equal(ranks[0].gradients[0], ranks[1].gradients[0])


def test_a_rank_alone_notes_forward_and_backward() -> None:
    recorder = StepRecorder(FakeClock())
    replica = build("single", make_model(), recorder)
    recorder.begin_step(0)
    replica.gradients_of(*shard(0, 0))
    recorder.end_step()
    (step,) = recorder.records()
    assert isinstance(step, StepRecord)
    assert [name for name, _, _ in step.spans] == ["forward", "backward"]


@pytest.fixture
def closing() -> Iterator[list[Replica]]:
    """Close what a test adds to the list, threads included."""
    replicas: list[Replica] = []
    before = threading.active_count()
    yield replicas
    for replica in replicas:
        replica.close()
    assert threading.active_count() == before


class Whereabouts(nn.Module):
    """Reports the thread, cores and thread count of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.seen: list[tuple[int, frozenset[int], int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = (threading.get_ident(), frozenset(os.sched_getaffinity(0)), torch.get_num_threads())
        self.seen.append(place)
        return x * self.weight


def test_every_replica_has_a_pinned_thread_of_its_own(closing: list[Replica]) -> None:
    model = Whereabouts()
    replica = build("data_parallel", model, world_size=2)
    closing.append(replica)
    cores = os.sched_getaffinity(0)
    inputs, targets = torch.ones(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    for _ in range(3):
        replica.gradients_of(inputs, targets)
        replica.apply()
    threads = {thread for thread, _, _ in model.seen}
    assert len(model.seen) == 6
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    assert {count for _, _, count in model.seen} == {1}
    if len(cores) > 1:
        first, second = {pinned for _, pinned, _ in model.seen}
        assert not first & second
        assert first | second <= cores
    assert os.sched_getaffinity(0) == cores  # the master's own are unchanged


def test_a_batch_that_does_not_divide_is_refused(closing: list[Replica]) -> None:
    replica = build("data_parallel", make_model(), world_size=3)
    closing.append(replica)
    with pytest.raises(ValueError, match="4 samples does not divide among 3 replicas"):
        replica.gradients_of(*shard(0, 0))


class Fails(nn.Module):
    """Fails for one replica's samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] == 7:
            raise ArithmeticError("seven")
        return x * self.weight


def test_a_replicas_exception_reaches_the_caller(closing: list[Replica]) -> None:
    replica = build("data_parallel", Fails(), world_size=2)
    closing.append(replica)
    inputs = torch.tensor([[1.0, 0.0], [7.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ArithmeticError, match="seven"):
        replica.gradients_of(inputs, torch.zeros(2, dtype=torch.int64))


@given(cores=st.lists(st.integers(0, 200), min_size=1, max_size=40, unique=True), count=st.integers(1, 12))
def test_cores_are_shared_evenly(cores: list[int], count: int) -> None:
    shares = core_shares(cores, count)
    assert len(shares) == count
    assert len({len(share) for share in shares}) == 1
    assert all(set(share) <= set(cores) and share for share in shares)
    used = [core for share in shares for core in share]
    most = max(used.count(core) for core in used)
    assert most == (1 if count <= len(cores) else -(-count // len(cores)))


class Tied(nn.Module):
    """Two layers of one weight, batch statistics and a recurrent layer, which keeps a list of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.recurrent = nn.LSTM(3, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.second(torch.tanh(self.first(x))))
        out: torch.Tensor = self.recurrent(x.unsqueeze(1))[0].squeeze(1)
        return out


@pytest.mark.parametrize("alias", [True, False])
def test_a_replica_keeps_its_gradients_to_itself(alias: bool) -> None:
    torch.manual_seed(3)
    model = Tied().double()
    inputs = torch.randn(5, 3, dtype=torch.float64)
    replica, parameters = replicate(model, alias=alias)
    replica(inputs).square().sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert replica.second.weight is replica.first.weight
    own = [parameters[parameter].grad for parameter in model.parameters()]
    model(inputs).square().sum().backward()
    correct = [parameter.grad for parameter in model.parameters()]
    assert len(correct) == 1 + 2 + 4
    assert bit_equal(own, correct)  # type: ignore[arg-type]


def test_only_the_first_replica_writes_the_masters_buffers() -> None:
    torch.manual_seed(3)
    model = Tied().double()
    inputs = torch.randn(5, 3, dtype=torch.float64)
    replicate(model, alias=False)[0](inputs)
    assert int(model.norm.num_batches_tracked) == 0
    assert torch.equal(model.norm.running_mean, torch.zeros(3, dtype=torch.float64))
    replicate(model, alias=True)[0](inputs)
    assert int(model.norm.num_batches_tracked) == 1
    hidden = model.second(torch.tanh(model.first(inputs)))
    torch.testing.assert_close(model.norm.running_mean, 0.1 * hidden.mean(0))
