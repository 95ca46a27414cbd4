"""Shrunk gradients fall into the same buckets: the caps are divided like the gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpbench.measure.recorder import NullRecorder
from ddpbench.spec import Case
from ddpbench.strategies import Job, load_strategy
from ddpbench.strategies.ddp.replica import DdpReplica
from ddpbench.workloads import load_workload
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks

STEPS = 3
"""Buckets are rebuilt in the second step."""
PROFILE = "replay:resnet50-v100"


def buckets_of(_rank: int, _processes: int, shrink: int, cap: Any, unused: bool) -> tuple[Any, int]:
    """Return the numbers of the parameters in each bucket of the last step, and torch's own first cap afterwards."""
    case = Case(
        workload=PROFILE,
        strategy="ddp",
        bucket_cap_mb=cap,
        local_batch=32,
        global_batch=32,
        compute="synthetic",
        shrink=shrink,
    )
    workload = load_workload(PROFILE).for_case(case, 0)
    model = workload.model(workload.options())
    strategy = load_strategy("ddp")
    job = Job(
        case=case,
        model=model,
        loss=workload.loss,
        make_optimizer=lambda parameters: workload.optimizer(parameters, workload.options()),
        device=torch.device("cpu"),
        rank=0,
        local_rank=0,
        world_size=1,
        distributed=True,
        recorder=NullRecorder(),
    )
    replica = strategy.build(job, strategy.options(find_unused_parameters=unused))
    assert isinstance(replica, DdpReplica)
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    seen: list[list[int]] = []

    def look(_state: Any, bucket: Any) -> Any:
        seen.append([numbers[id(parameter)] for parameter in bucket.parameters()])
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    look.__annotations__ = {}
    replica._reducers.ddps[0].register_comm_hook(None, look)
    batch = torch.rand(32, 256)
    for _ in range(STEPS):
        seen.clear()
        replica.gradients_of(batch, None)
        replica.apply()
    return seen, dist._DEFAULT_FIRST_BUCKET_BYTES


@pytest.mark.parametrize(
    ("cap", "unused"),
    [pytest.param("default", False, marks=pytest.mark.thorough), ("default", True), (5.0, False)],
)
def test_buckets_hold_the_same_parameters_when_shrunk(cap: Any, unused: bool) -> None:
    (whole, first), *_ = run_ranks(buckets_of, 1, 1, cap, unused)
    (shrunk, afterwards), *_ = run_ranks(buckets_of, 1, 4, cap, unused)
    assert shrunk == whole
    assert afterwards == first == 1 << 20
    assert sorted(number for bucket in whole for number in bucket) == list(range(161))
    # 97.5 MiB of gradients: a first bucket of fc's 7.8, then 25 and more; or 5 and more, by up to a 9 MiB tensor.
    assert len(whole) >= (4 if cap == "default" else 10)


def test_without_scaled_caps_they_would_not() -> None:
    """The test above can fail: with gradients divided by 4 in buckets of full size."""
    (whole, _), *_ = run_ranks(buckets_of, 1, 1, 20.0, False)
    (shrunk, _), *_ = run_ranks(buckets_of, 1, 1, 5.0, False)
    assert shrunk != whole
