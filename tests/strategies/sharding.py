"""Functions for ranks in the tests of sharded strategies, and the same training computed in one process."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder, Recorder, StepRecorder
from ddpbench.records import CommRecord, StepRecord
from ddpbench.spec import Case
from ddpbench.strategies import Job, Replica, load_strategy
from ddpbench.worker.training.precision import FULL, PrecisionPolicy, ScaledAutocast
from tests.strategies.training import CLASSES, FEATURES, LOCAL_BATCH, shard

STEPS = 3
WIDTH = 7
Values = dict[str, torch.Tensor]


class Stack(nn.Module):
    """Two blocks between two layers outside blocks; 7 and 5 rows divide unevenly over 2, 3 and 4 ranks."""

    used = 2
    """The number of blocks that forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.frozen = nn.Linear(CLASSES, CLASSES)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.entry(x))
        for block in self.blocks[: self.used]:
            x = torch.tanh(block(x))
        out: torch.Tensor = self.frozen(self.head(x))
        return out


def make_stack(dtype: torch.dtype = torch.float64) -> Stack:
    torch.manual_seed(7)
    return Stack().to(dtype)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer with two numbers of state per parameter, and a step count per tensor."""
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    """Give weights and biases different settings, as in many training scripts."""
    every = list(parameters)
    return torch.optim.SGD(
        [
            {"params": [each for each in every if each.ndim > 1], "weight_decay": 0.1, "momentum": 0.9},
            {"params": [each for each in every if each.ndim == 1], "lr": 0.2},
        ],
        lr=0.1,
    )


OPTIMIZERS = {"adamw": adamw, "two_groups": two_groups}


@dataclass
class Seen:
    """Observations of a rank in a run: gradients and losses by step; at the end parameters, bytes held, records."""

    gradients: list[Values] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    parameters: Values = field(default_factory=dict)
    held: tuple[int, int, int] = (0, 0, 0)
    records: list[StepRecord | CommRecord] = field(default_factory=list)


def runs(
    rank: int, processes: int, strategy: str, options: dict[str, Any], optimizer: str, dtype: torch.dtype
) -> tuple[Seen, Seen, Seen]:
    """Make three runs of `STEPS` steps on one module, each by a new replica: plain, instrumented, plain."""
    model = make_stack(dtype)
    found = []
    recorders: list[Recorder] = [NullRecorder(), StepRecorder(HostClock()), NullRecorder()]
    for number, recorder in enumerate(recorders):
        replica = _build(rank, processes, strategy, options, OPTIMIZERS[optimizer], model, recorder)
        found.append(_run(replica, rank, number * STEPS, dtype))
    return found[0], found[1], found[2]


def _build(
    rank: int,
    processes: int,
    strategy: str,
    options: dict[str, Any],
    make_optimizer: Any,
    model: nn.Module,
    recorder: Recorder,
    precision: PrecisionPolicy = FULL,
) -> Replica:
    chosen = load_strategy(strategy)
    case = Case(
        workload="tests",
        strategy=strategy,
        algorithm=chosen.algorithm,
        schedule=chosen.schedule,
        world_size=processes,
        bucket_cap_mb="default" if chosen.uses_buckets else None,
        local_batch=LOCAL_BATCH,
    )
    job = Job(
        case=case,
        model=model,
        loss=precision.loss(nn.functional.cross_entropy),
        make_optimizer=make_optimizer,
        device=torch.device("cpu"),
        rank=rank,
        local_rank=rank,
        world_size=processes,
        distributed=True,
        recorder=recorder,
    )
    return chosen.build(job, chosen.options(**options))


def overflowed(rank: int, processes: int, strategy: str) -> tuple[bool, bool]:
    """Return whether an fp16 update is skipped when one number on the last rank is infinite, and made when none is."""
    found = []
    for infinite in (True, False):
        precision = ScaledAutocast("fp16", "cpu", torch.float16)
        model = make_stack(torch.float32)
        replica = _build(rank, processes, strategy, {}, adamw, model, NullRecorder(), precision)
        replica.gradients_of(*shard(rank, 0, torch.float32))
        before = replica.own_parameters()
        if infinite and rank == processes - 1:
            gradient: Any = model.entry.weight.grad
            gradient.to_local()[0, 0] = math.inf
        precision.update(replica)
        after = replica.own_parameters()
        found.append(all(torch.equal(before[name], after[name]) for name in before))
        replica.close()
    return found[0], not found[1]


def left_out(rank: int, processes: int) -> list[str]:
    """Return the errors of three steps under FSDP: with both blocks, without gradients and blocks, with one block."""
    model, found = make_stack(), []
    replica = _build(rank, processes, "fsdp", {}, adamw, model, NullRecorder())
    for used, evaluates in ((2, False), (2, True), (1, False)):
        try:
            if evaluates:
                model.used = 0
                with torch.no_grad():
                    model(shard(rank, 0)[0])
            model.used = used
            replica.gradients_of(*shard(rank, 0))
            found.append("")
        except RuntimeError as error:
            found.append(str(error))
    return found


def _run(replica: Replica, rank: int, first: int, dtype: torch.dtype) -> Seen:
    recorder = replica.job.recorder
    seen = Seen()
    for step in range(first, first + STEPS):
        if isinstance(recorder, StepRecorder):
            recorder.begin_step(step)
        seen.losses.append(float(replica.gradients_of(*shard(rank, step, dtype))))
        if isinstance(recorder, StepRecorder):
            with recorder.span("optimizer"):
                replica.apply()
            recorder.end_step()
            continue
        seen.gradients.append({name: each.clone() for name, each in replica.own_gradients().items()})
        seen.held = replica.held_bytes()
        replica.apply()
    if isinstance(recorder, StepRecorder):
        seen.records = recorder.records()
    seen.parameters = replica.own_parameters()
    replica.close()
    return seen


def one_process(world_size: int, optimizer: str, dtype: torch.dtype) -> list[Seen]:
    """Return the same three runs made in one process, over all ranks' shards; losses are those of rank 0."""
    model = make_stack(dtype)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    found = []
    for number in range(3):
        updates = OPTIMIZERS[optimizer](model.parameters())
        seen = Seen()
        for step in range(number * STEPS, (number + 1) * STEPS):
            losses = []
            for rank in range(world_size):
                inputs, targets = shard(rank, step, dtype)
                loss = nn.functional.cross_entropy(model(inputs), targets) / world_size
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(float(loss.detach()) * world_size)
            seen.gradients.append({name: each.grad.clone() for name, each in trained.items()})  # type: ignore[union-attr]
            seen.losses.append(losses[0])
            updates.step()
            updates.zero_grad()
        seen.parameters = {name: each.detach().clone() for name, each in trained.items()}
        found.append(seen)
    return found
