"""Which ranks train on which samples, and how many of a step's samples count as theirs."""

from __future__ import annotations

import pytest
import torch

from ddpbench.spec import Case
from ddpbench.worker.place import Place
from ddpbench.worker.training.training import Training


def training(strategy: str, rank: int, world_size: int, trainers: int) -> Training:
    case = Case(
        workload="mlp:small",
        strategy=strategy,
        world_size=world_size,
        local_batch=4,
        global_batch=4 * trainers,
    )
    place = Place(
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
