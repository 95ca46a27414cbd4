"""Parameters that a rank's loss does not reach, and models that differ initially, on two real ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.ranks import run_ranks
from tests.strategies import own_updates
from tests.strategies.proving import broken, case_of, proofs
from tests.strategies.training import build

pytestmark = pytest.mark.ranks

INPUTS = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
TARGETS = torch.tensor([0, 1])


class Branches(nn.Module):
    """Uses `even` on even ranks only, `always` on all and `never` on none."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.always = nn.Parameter(torch.tensor([0.5, -0.5], dtype=torch.float64))
        self.even = nn.Parameter(torch.tensor([0.25, 0.75], dtype=torch.float64))
        self.never = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.always
        return x * self.even if self.rank % 2 == 0 else x


def branches(rank: int, processes: int, strategy: str) -> list[torch.Tensor | None]:
    model = Branches(rank)
    options = {"find_unused_parameters": True} if strategy == "ddp" else {}
    cap = "default" if strategy == "ddp" else None
    replica = build(strategy, model, rank=rank, world_size=processes, options=options, bucket_cap_mb=cap)
    replica.gradients_of(INPUTS, TARGETS)
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    replica.close()
    return gradients


@pytest.mark.parametrize("strategy", ["ddp", "master"])
def test_a_rank_that_does_not_use_a_parameter_counts_as_zero(strategy: str) -> None:
    sums = [torch.zeros(2, dtype=torch.float64) for _ in range(3)]
    for rank in range(2):
        model = Branches(rank)
        nn.functional.cross_entropy(model(INPUTS), TARGETS).backward()
        for total, parameter in zip(sums, model.parameters(), strict=True):
            if parameter.grad is not None:
                total += parameter.grad
    assert float(sums[1].abs().min()) > 0  # otherwise this test shows nothing
    for always, even, never in run_ranks(branches, 2, strategy):
        torch.testing.assert_close(always, sums[0] / 2, rtol=1e-12, atol=0)
        torch.testing.assert_close(even, sums[1] / 2, rtol=1e-12, atol=0)
        if strategy == "master":
            assert torch.equal(never, torch.zeros(2, dtype=torch.float64))
        else:
            assert never is None  # DDP does not change what no rank has used


def different(rank: int, processes: int, strategy: str) -> list[torch.Tensor]:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double()
    model[1].running_mean.fill_(rank + 1)
    cap = "default" if strategy == "ddp" else None
    replica = build(strategy, model, rank=rank, world_size=processes, bucket_cap_mb=cap)
    state = [tensor.clone() for tensor in model.state_dict().values()]
    replica.close()
    return state


@pytest.mark.parametrize("strategy", ["ddp", "master"])
def test_models_that_differ_become_the_first_ranks(strategy: str) -> None:
    torch.manual_seed(0)
    correct = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double()
    correct[1].running_mean.fill_(1)
    for state in run_ranks(different, 2, strategy):
        for own, expected in zip(state, correct.state_dict().values(), strict=True):
            assert torch.equal(own, expected)


def two_dtypes(rank: int, processes: int) -> tuple[list[torch.Tensor], list[tuple[int, str, int]]]:
    from ddpbench.measure.clock import HostClock
    from ddpbench.measure.recorder import StepRecorder
    from ddpbench.records import CommRecord

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Parameter(torch.ones(2, dtype=torch.float32))
            self.wide = nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (rank + 1) * x * self.narrow * self.wide

    recorder = StepRecorder(HostClock())
    replica = build("master", Mixed(), recorder, rank=rank, world_size=processes)
    recorder.begin_step(0)
    replica.gradients_of(INPUTS, TARGETS)
    recorder.end_step()
    transfers = [
        (record.bucket, record.op, record.bytes)
        for record in recorder.records()
        if isinstance(record, CommRecord)
    ]
    return replica.gradients(), transfers


def test_the_master_serves_each_dtype_in_turn() -> None:
    def gradient(scale: int) -> torch.Tensor:
        weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
        nn.functional.cross_entropy(scale * INPUTS * weight, TARGETS).backward()
        assert weight.grad is not None
        return weight.grad

    mean = (gradient(1) + gradient(2)) / 2
    for (single, double), transfers in run_ranks(two_dtypes, 2):
        torch.testing.assert_close(single, mean.float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(double, mean, rtol=1e-12, atol=0)
        assert transfers == [(0, "gather", 8), (1, "scatter", 8), (2, "gather", 16), (3, "scatter", 16)]


@pytest.mark.parametrize("name", ["Routed", "Refilled"])
def test_a_proof_s_later_batches_may_reach_less_and_lie_where_the_first_did(name: str) -> None:
    for (found,) in run_ranks(proofs, 2, [case_of("fsdp", 2, f"{own_updates.__file__}:{name}")]):
        assert "parameters, same samples" in {proof.compared for proof in found}
        assert not broken(found)
