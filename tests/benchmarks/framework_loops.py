"""Training loops as people write them in Accelerate, Fabric and Lightning's Trainer, in turn with strategies' blocks.

    torchrun --nproc-per-node 2 tests/benchmarks/framework_loops.py --loop trainer --workload gpt:nano --out FILE

The loops know nothing of the harness: a DataLoader and a clock of their own. Each side trains a model of its own, of
the same size, from the same seed. Rank 0 writes the pairs of times of as many steps as JSON; which goes first
alternates.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from ddpbench.measure.blocks import Stepper, run_block
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
from ddpbench.spec import Case
from ddpbench.worker.place import Place
from ddpbench.worker.training.control import leave, meet
from ddpbench.worker.training.training import StepLoop, Training
from ddpbench.workloads import load_workload
from tests.benchmarks.ratio import paired_ratio

LEAD_IN = 4
"""Steps before those that are timed: DDP's buckets are settled after two."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a script has before a framework comes in."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Any]
    loss: Callable[[Any, Any], torch.Tensor]


Steps = Callable[[int], float]
"""Trains for so many steps and returns how long they took, seconds."""


def accelerate_steps(task: Task) -> Steps:
    """The loop of Accelerate's documentation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(task.model, task.optimizer)
    batches = _endless(task.loader)

    def step() -> None:
        inputs, targets = next(batches)
        accelerator.backward(task.loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()

    return _timed(step)


def fabric_steps(task: Task) -> Steps:
    """The loop of Fabric's documentation."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(task.model, task.optimizer)
    batches = _endless(task.loader)

    def step() -> None:
        inputs, targets = next(batches)
        fabric.backward(task.loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()

    return _timed(step)


def trainer_steps(task: Task) -> Steps:
    """A LightningModule and `Trainer.fit`, once for each time asked for; a callback times its last steps."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = task.model

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            inputs, targets = batch
            return task.loss(self.network(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return task.optimizer

    class Watch(Callback):
        def __init__(self, steps: int) -> None:
            self.ends = {LEAD_IN: 0.0, LEAD_IN + steps: 0.0}

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step in self.ends:
                self.ends[trainer.global_step] = time.perf_counter()

    def steps(count: int) -> float:
        watch = Watch(count)
        trainer = Trainer(
            accelerator="cpu",
            devices=dist.get_world_size(),
            strategy="ddp",
            max_epochs=-1,
            max_steps=LEAD_IN + count,
            callbacks=[watch],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
        )
        trainer.fit(Module(), task.loader)
        first, last = watch.ends.values()
        return last - first

    return steps


LOOPS: dict[str, tuple[Callable[[Task], Steps], str, dict[str, str]]] = {
    "accelerate": (accelerate_steps, "accelerate", {}),
    "fabric": (fabric_steps, "lightning", {"api": "fabric"}),
    "trainer": (trainer_steps, "lightning", {"api": "trainer"}),
}
"""The loops, with the strategy that each is held against, and its options."""


def _timed(step: Callable[[], None]) -> Steps:
    def steps(count: int) -> float:
        dist.barrier()
        for _ in range(LEAD_IN):
            step()
        start = time.perf_counter()
        for _ in range(count):
            step()
        return time.perf_counter() - start

    return steps


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        yield from loader
        epoch += 1


def task_of(name: str, local_batch: int) -> Task:
    """What a script of its own would make of a workload."""
    workload = load_workload(name)
    options = workload.options()
    torch.manual_seed(0)
    model = workload.model(options)
    dataset = workload.dataset(options)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=local_batch, sampler=sampler, drop_last=True)
    return Task(model, workload.optimizer(model.parameters(), options), loader, workload.loss)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=LOOPS, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--local-batch", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=60, help="at least this many")
    parser.add_argument("--pairs-max", type=int, default=60)
    parser.add_argument("--half-width", type=float, default=0.008)
    parser.add_argument("--block-seconds", type=float, default=0.1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    make, strategy, options = LOOPS[arguments.loop]

    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    place = Place(rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=())
    case = Case(
        workload=arguments.workload,
        strategy=strategy,
        algorithm="all_reduce",
        schedule="overlapped",
        world_size=processes,
        bucket_cap_mb="default",
        options_json=json.dumps(options),
        local_batch=arguments.local_batch,
        global_batch=arguments.local_batch * processes,
    )
    training = Training(case, place, torch.device("cpu"))
    control = meet(case, place, uses_backend=True, device=torch.device("cpu"))
    replica = training.replica(training.fresh_model(), NullRecorder(), distributed=True)
    loop = StepLoop(replica, training.batches(), NullRecorder(), Heartbeat(bytearray(PAGE_BYTES), 0))
    stepper = Stepper(loop.step, arguments.local_batch, HostClock(), control)
    own = make(task_of(arguments.workload, arguments.local_batch))

    def harness(steps: int) -> float:
        block = run_block(stepper, steps, 0, "timed")
        return (block.end_ns - block.start_ns) / 1e9

    gc.freeze()  # as in a rank of a sweep: a collection does not walk all of torch
    warm = run_block(stepper, 30, 0, "warmup")
    step_s = (warm.end_ns - warm.start_ns) / warm.steps / 1e9
    steps = control.agree(max(10, round(arguments.block_seconds / step_s)))
    own(steps)
    pairs: list[tuple[float, float]] = []
    for number in range(arguments.pairs_max):
        enough = number >= arguments.pairs and paired_ratio(pairs).half_width <= arguments.half_width
        if control.agree(int(enough)):
            break
        if number % 2 == 0:
            pairs.append((harness(steps), own(steps)))
        else:
            second = own(steps)
            pairs.append((harness(steps), second))
    if rank == 0:
        arguments.out.write_text(json.dumps({"steps": steps, "pairs": pairs}), encoding="utf-8")
    leave(control)
    os._exit(0)


if __name__ == "__main__":
    main()
