"""The ranks that train on each sample, and how many of a step's samples count as theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from ddpbench.spec import Case
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.training import Training


def training(
    strategy: str, rank: int, world_size: int, trainers: int, options: dict[str, Any] | None = None
) -> Training:
    case = Case(
        workload="mlp:small",
        strategy=strategy,
        options_json=json.dumps(options or {}),
        world_size=world_size,
        local_batch=4,
        global_batch=4 * trainers,
    )
    place = JobPlace(
        rank=rank, processes=world_size, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    return Training(case, place, torch.device("cpu"))


@pytest.mark.parametrize(
    ("strategy", "shares"), [("ddp", [4, 4, 4]), ("master", [4, 4, 4]), ("async_server", [0, 4, 4])]
)
def test_the_ranks_shares_are_the_job_s_batch(strategy: str, shares: list[int]) -> None:
    trainers = sum(share > 0 for share in shares)
    ranks = [training(strategy, rank, 3, trainers) for rank in range(3)]
    assert [rank.share for rank in ranks] == shares
    assert sum(shares) == ranks[0].case.global_batch


def test_workers_train_on_what_as_many_ranks_of_ddp_would() -> None:
    """The server takes no part in dealing: worker 1 has what rank 0 of two has, and worker 2 what rank 1 has."""
    workers = [next(training("async_server", rank, 3, 2).batches()) for rank in (1, 2)]
    ranks = [next(training("ddp", rank, 2, 2).batches()) for rank in (0, 1)]
    for (inputs, targets), (same_inputs, same_targets) in zip(workers, ranks, strict=True):
        assert torch.equal(inputs, same_inputs)
        assert torch.equal(targets, same_targets)
    assert not torch.equal(workers[0][0], workers[1][0])


HYBRIDS: list[tuple[str, dict[str, Any], int, list[int]]] = [
    ("pipeline", {"replicas": 2}, 4, [0, 0, 1, 1]),
    ("pipeline", {"replicas": 3}, 6, [0, 0, 1, 1, 2, 2]),
    ("pipeline", {"replicas": 2}, 6, [0, 0, 0, 1, 1, 1]),
    ("pipeline", {}, 4, [0, 0, 0, 0]),
    ("fsdp", {"replicas": 2}, 4, [0, 1, 2, 3]),
]


@pytest.mark.parametrize(("strategy", "options", "world_size", "dealt"), HYBRIDS)
def test_ranks_of_one_pipeline_take_its_share_and_all_shares_are_the_job_s_batch(
    strategy: str, options: dict[str, Any], world_size: int, dealt: list[int]
) -> None:
    ranks = [training(strategy, rank, world_size, world_size, options) for rank in range(world_size)]
    count = max(dealt) + 1
    assert [one.samples for one in ranks] == [4 * world_size // count] * world_size
    # for any rank: rates are computed from these
    assert [one.share for one in ranks] == [4] * world_size
    batches = [next(one.batches()) for one in ranks]
    whole = next(training("single", 0, 1, world_size).batches())
    for own, number in zip(batches, dealt, strict=True):
        same = batches[dealt.index(number)]
        assert torch.equal(own[0], same[0])
        assert torch.equal(own[1], same[1])
    shares = [batches[dealt.index(number)] for number in range(count)]
    assert rows(torch.cat([inputs for inputs, _ in shares])) == rows(whole[0])
    assert sum(len(inputs) for inputs, _ in shares) == len(whole[0]) == 4 * world_size


def rows(inputs: torch.Tensor) -> list[list[float]]:
    return sorted(inputs.flatten(1).tolist())
