"""Blocks of the harness and of a hand-written loop in turn, on the same objects, in one torchrun job.

    torchrun --nproc-per-node 2 tests/benchmarks/alternating.py --strategy ddp --workload gpt:nano --out FILE

Or, with `--against timed`, blocks of instrumented steps and of timed ones, each with a model of its own. Rank 0 writes
the pairs of block times as JSON. Which of a pair goes first alternates, so that drift cancels.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddpbench.measure.blocks import Stepper, run_block
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder, StepRecorder
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
from ddpbench.spec import Case
from ddpbench.worker.place import Place
from ddpbench.worker.training.control import Control, leave, meet
from ddpbench.worker.training.training import StepLoop, Training
from tests.benchmarks.ratio import paired_ratio

BARE = ("single", "ddp", "data_parallel")
NOTED = ("master", "pipeline")
"""Strategies that a bare loop has, and others that note their steps."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=[*BARE, *NOTED], required=True)
    parser.add_argument("--against", choices=["bare", "timed"], default="bare")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--options", default="{}", help="of the strategy, as JSON")
    parser.add_argument("--local-batch", type=int, default=4)
    parser.add_argument(
        "--world-size", type=int, required=True, help="replicas; data_parallel has them in one process"
    )
    parser.add_argument("--pairs", type=int, default=60, help="at least this many")
    parser.add_argument(
        "--pairs-max", type=int, default=60, help="and more, up to this, while the interval is wide"
    )
    parser.add_argument("--half-width", type=float, default=0.008)
    parser.add_argument("--block-seconds", type=float, default=0.1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    if arguments.strategy in NOTED and arguments.against == "bare":
        parser.error(f"a bare loop has no {arguments.strategy}: use --against timed")
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    place = Place(rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=())
    if arguments.strategy != "data_parallel":
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    case = Case(
        workload=arguments.workload,
        strategy=arguments.strategy,
        world_size=arguments.world_size,
        bucket_cap_mb="default",
        options_json=arguments.options,
        local_batch=arguments.local_batch,
        global_batch=arguments.local_batch * arguments.world_size,
    )
    training = Training(case, place, torch.device("cpu"))
    model = training.fresh_model()
    control = meet(case, place, uses_backend=training.strategy.uses_backend, device=torch.device("cpu"))
    replica = training.replica(model, NullRecorder(), distributed=dist.is_initialized())
    batches = training.batches()
    loop = StepLoop(replica, batches, NullRecorder(), Heartbeat(bytearray(PAGE_BYTES), 0))
    samples = case.global_batch // processes
    stepper = Stepper(loop.step, samples, HostClock(), control)

    def timed_block(steps: int) -> float:
        block = run_block(stepper, steps, 0, "timed")
        return (block.end_ns - block.start_ns) / 1e9

    if arguments.against == "timed":
        sides = (instrumented(training, batches, samples, control), timed_block)
    else:
        sides = (timed_block, bare(loop, training, batches, control))
    gc.freeze()  # as in a rank of a sweep: a collection does not walk all of torch
    warm = run_block(stepper, 30, 0, "warmup")
    step_s = (warm.end_ns - warm.start_ns) / warm.steps / 1e9
    steps = control.agree(max(10, round(arguments.block_seconds / step_s)))
    pairs: list[tuple[float, float]] = []
    for number in range(arguments.pairs_max):
        enough = number >= arguments.pairs and paired_ratio(pairs).half_width <= arguments.half_width
        if control.agree(int(enough)):
            break
        if number % 2 == 0:
            pairs.append((sides[0](steps), sides[1](steps)))
        else:
            second = sides[1](steps)
            pairs.append((sides[0](steps), second))
    if rank == 0:
        arguments.out.write_text(json.dumps({"steps": steps, "pairs": pairs}), encoding="utf-8")
    leave(control)
    os._exit(0)


def bare(
    loop: StepLoop, training: Training, batches: Iterator[Any], control: Control
) -> Callable[[int], float]:
    """Return what a person writes, on the same objects: the training loop, and a clock around it."""
    replica = loop.replica
    optimizer, loss_of = replica.optimizer, training.workload.loss
    module = getattr(replica, "_wrapped", replica.job.model)

    def block(steps: int) -> float:
        control.agree(0)  # the same start as the harness has: together, one step after a barrier
        loop.step()
        start = time.perf_counter()
        for _ in range(steps):
            inputs, targets = next(batches)
            if training.case.strategy == "data_parallel":
                replica.gradients_of(inputs, targets)
            else:
                loss_of(module(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    return block


def instrumented(
    training: Training, batches: Iterator[Any], samples: int, control: Control
) -> Callable[[int], float]:
    """Return blocks of steps that note their spans and transfers, of another model like the first."""
    clock = HostClock()
    recorder, numbers = StepRecorder(clock), itertools.count()
    replica = training.replica(training.fresh_model(), recorder, distributed=dist.is_initialized())
    loop = StepLoop(replica, batches, recorder, Heartbeat(bytearray(PAGE_BYTES), 0))

    def step() -> None:
        recorder.begin_step(next(numbers))
        loop.step()
        recorder.end_step()

    stepper = Stepper(step, samples, clock, control)
    run_block(stepper, 30, 0, "warmup")

    def block(steps: int) -> float:
        found = run_block(stepper, steps, 0, "instrumented")
        assert recorder.records()
        return (found.end_ns - found.start_ns) / 1e9

    return block


if __name__ == "__main__":
    main()
