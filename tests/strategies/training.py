"""Functions for ranks in the tests of strategies, and the same training computed in one process."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder, Recorder, StepRecorder
from ddpbench.records import CommRecord, StepRecord
from ddpbench.spec import Case
from ddpbench.strategies import Job, Replica, load_strategy

LOCAL_BATCH = 4
FEATURES, CLASSES = 6, 5
STEPS = 6
LEARNING_RATE, MOMENTUM = 0.1, 0.9


def make_model(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Three trained layers of different sizes, and one that is frozen."""
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Linear(FEATURES, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, CLASSES)
    )
    model.append(nn.Linear(CLASSES, CLASSES))
    model[-1].requires_grad_(False)
    return model.to(dtype)


def shard(rank: int, step: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one rank's batch in one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(LOCAL_BATCH, FEATURES, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), torch.randint(CLASSES, (LOCAL_BATCH,), generator=generator)


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=LEARNING_RATE, momentum=MOMENTUM)


def build(
    strategy: str,
    model: nn.Module,
    recorder: Recorder | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    options: dict[str, Any] | None = None,
    bucket_cap_mb: Any = None,
    algorithm: str = "",
    schedule: str = "",
    nodes: int = 1,
) -> Replica:
    """Return a rank's replica of the model under a strategy."""
    chosen = load_strategy(strategy)
    job = Job(
        case=Case(
            workload="tests",
            strategy=strategy,
            algorithm=algorithm or chosen.algorithm,
            schedule=schedule or chosen.schedule,
            world_size=world_size,
            bucket_cap_mb=bucket_cap_mb,
            local_batch=LOCAL_BATCH,
            nodes=nodes,
            ranks_per_node=world_size // nodes,
        ),
        model=model,
        loss=nn.functional.cross_entropy,
        make_optimizer=make_optimizer,
        device=torch.device("cpu"),
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        distributed=torch.distributed.is_initialized() and chosen.uses_backend,
        recorder=recorder or NullRecorder(),
    )
    return chosen.build(job, chosen.options(**(options or {})))


@dataclass
class Run:
    """Observations of one rank in `STEPS` steps: gradients and the like by step, and parameters at the end."""

    gradients: list[list[torch.Tensor]]
    losses: list[float]
    parameters: list[torch.Tensor]
    ready: list[bool]
    buckets: list[tuple[int, ...] | None]
    records: list[StepRecord | CommRecord]
    reducers_left: int = 0


def train(replica: Replica, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Run:
    """Train one step per batch, as the worker does, and close the replica."""
    recorder = replica.job.recorder
    run = Run([], [], [], [], [], [])
    for number, (inputs, targets) in enumerate(batches):
        if isinstance(recorder, StepRecorder):
            recorder.begin_step(number)
        loss = replica.gradients_of(inputs, targets)
        if isinstance(recorder, StepRecorder):
            recorder.end_step()
        assert not loss.requires_grad
        run.losses.append(float(loss.detach()))
        run.gradients.append([gradient.clone() for gradient in replica.gradients()])
        run.ready.append(replica.ready())
        buckets = replica.bucket_bytes()
        run.buckets.append(None if buckets is None else tuple(buckets))
        replica.apply()
    if isinstance(recorder, StepRecorder):
        run.records = recorder.records()
    run.parameters = [parameter.detach().clone() for parameter in replica.job.model.parameters()]
    replica.close()
    return run


def reducers() -> int:
    """Return how many DDP wrappers this process still holds; each has buckets and hooks on the parameters."""
    return sum(isinstance(thing, nn.parallel.DistributedDataParallel) for thing in gc.get_objects())


def three_runs(
    rank: int,
    processes: int,
    strategy: str,
    world_size: int,
    options: dict[str, Any],
    bucket_cap_mb: Any,
    settings: dict[str, str] | None = None,
) -> tuple[Run, Run, Run]:
    """Train three times: plain; instrumented; plain again on the instrumented run's module."""
    ranks = range(world_size) if processes == 1 else [rank]
    batches = []
    for step in range(STEPS):
        shards = [shard(number, step) for number in ranks]
        batches.append((torch.cat([x for x, _ in shards]), torch.cat([y for _, y in shards])))
    how: dict[str, Any] = {
        "rank": rank,
        "world_size": world_size,
        "options": options,
        "bucket_cap_mb": bucket_cap_mb,
        **(settings or {}),
    }
    plain = train(build(strategy, make_model(), **how), batches)
    model = make_model()
    closed = build(strategy, model, StepRecorder(HostClock()), **how)  # still referred to below, on purpose
    noted = train(closed, batches)
    noted.reducers_left = reducers()
    model.load_state_dict(make_model().state_dict())
    again = train(build(strategy, model, **how), batches)
    del closed
    return plain, noted, again


def departures(
    rank: int, processes: int, bucket_cap_mb: float, settings: dict[str, str]
) -> list[tuple[int, list[int]]]:
    """Return for steps after rebuilding when the last gradient was ready, and when each bucket left; ns."""
    model, clock = make_model(), HostClock()
    moments: list[int] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda _: moments.append(time.perf_counter_ns()))
    recorder = StepRecorder(clock)
    how: dict[str, Any] = {"rank": rank, "world_size": processes, "bucket_cap_mb": bucket_cap_mb, **settings}
    replica = build("ddp", model, recorder, **how)
    found = []
    for step in range(STEPS):
        moments.clear()
        recorder.begin_step(step)
        replica.gradients_of(*shard(rank, step))
        recorder.end_step()
        replica.apply()
        sent = [record.start_ns for record in recorder.records() if isinstance(record, CommRecord)]
        if step >= 2:
            found.append((max(moments), sent))
    replica.close()
    return found


@dataclass
class Reference:
    """Mean gradients and mean losses by step, and parameters at the end, of one process that runs all shards."""

    gradients: list[list[torch.Tensor]]
    losses: list[list[float]]
    parameters: list[torch.Tensor]


def reference(world_size: int, steps: int = STEPS) -> Reference:
    """Train in one process, with SGD's formula (torch.optim.SGD's)."""
    model = make_model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    momenta = [torch.zeros_like(parameter) for parameter in trained]
    result = Reference([], [], [])
    for step in range(steps):
        sums = [torch.zeros_like(parameter) for parameter in trained]
        losses = []
        for rank in range(world_size):
            inputs, targets = shard(rank, step)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            losses.append(float(loss.detach()))
            for total, gradient in zip(sums, torch.autograd.grad(loss, trained), strict=True):
                total += gradient
        means = [total / world_size for total in sums]
        result.gradients.append(means)
        result.losses.append(losses)
        with torch.no_grad():
            for parameter, momentum, mean in zip(trained, momenta, means, strict=True):
                momentum.mul_(MOMENTUM).add_(mean)
                parameter -= LEARNING_RATE * momentum
    result.parameters = [parameter.detach() for parameter in model.parameters()]
    return result


def relative_error(own: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the largest relative error over tensors, by their norms."""
    assert [tensor.shape for tensor in own] == [tensor.shape for tensor in expected]
    return max(
        float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))
        for a, b in zip(own, expected, strict=True)
    )


def bit_equal(own: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(own) == len(other) and all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
