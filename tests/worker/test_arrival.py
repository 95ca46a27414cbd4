"""The order of gradients that a probe finds without computing, compared with the buckets that DDP itself builds."""

from __future__ import annotations

from typing import Any

import pytest

from ddpbench.spec import Case
from ddpbench.spec.buckets import bucket_bytes
from tests.ranks import run_ranks

pytestmark = pytest.mark.multiprocess
CAPS = ("default", 0.05, 0.2, 1)


def found_and_built(_rank: int, _processes: int, workload: str) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the gradients that the probe finds, and those that DDP's reducer rebuilt under each cap."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.training import Training
    from ddpbench.worker.verify.arrival import gradient_order

    case = Case(workload=workload, strategy="single", local_batch=2, global_batch=2)
    alone = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
    training = Training(case, alone, torch.device("cpu"))
    built: list[tuple[int, ...]] = []
    for cap in CAPS:
        model: Any = DistributedDataParallel(
            training.fresh_model(), bucket_cap_mb=None if cap == "default" else cap
        )
        batches = training.batches()
        for _ in range(4):
            inputs, targets = next(batches)
            training.workload.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        built.append(tuple(int(size) for size in sizes.split(",")))
    return gradient_order(case)["gradients"], built


@pytest.mark.parametrize("workload", ["gpt:nano", "two_branch:small"])
def test_the_buckets_that_are_told_are_those_that_ddp_builds(workload: str) -> None:
    ((sizes, built),) = run_ranks(found_and_built, 1, workload)
    assert [bucket_bytes(sizes, cap) for cap in CAPS] == built
    assert len(set(built)) > 2
