"""Blocks of the harness and of a hand-written loop in turn, on the same objects, in one torchrun job.

    torchrun --nproc-per-node 2 tests/benchmarks/alternating.py --strategy ddp --workload gpt:nano --out FILE

Rank 0 writes the pairs of block times as JSON. Which of a pair goes first alternates, so that drift cancels.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ddpbench.measure.blocks import Stepper, run_block
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
from ddpbench.spec import Case
from ddpbench.worker.place import Place
from ddpbench.worker.training.control import leave, meet
from ddpbench.worker.training.training import StepLoop, Training
from tests.benchmarks.ratio import paired_ratio


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=["single", "ddp", "data_parallel"], required=True)
    parser.add_argument("--workload", required=True)
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

    optimizer, loss_of = replica.optimizer, training.workload.loss
    module = getattr(replica, "_ddp", None) or model

    def bare_block(steps: int) -> float:
        """What a person writes: the training loop, and a clock around it."""
        if arguments.strategy == "data_parallel":
            start = time.perf_counter()
            for _ in range(steps):
                inputs, targets = next(batches)
                replica.gradients_of(inputs, targets)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            return time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(steps):
            inputs, targets = next(batches)
            loss = loss_of(module(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    def align() -> None:
        """The same start for both sides: together, one step after a barrier."""
        control.agree(0)
        loop.step()

    warm = run_block(stepper, 30, 0, "warmup")
    step_s = (warm.end_ns - warm.start_ns) / warm.steps / 1e9
    steps = control.agree(max(10, round(arguments.block_seconds / step_s)))
    pairs: list[tuple[float, float]] = []
    for number in range(arguments.pairs_max):
        enough = number >= arguments.pairs and paired_ratio(pairs).half_width <= arguments.half_width
        if control.agree(int(enough)):
            break
        harness = bare = 0.0
        for side in ("harness", "bare") if number % 2 == 0 else ("bare", "harness"):
            if side == "harness":
                block = run_block(stepper, steps, number, "timed")
                harness = (block.end_ns - block.start_ns) / 1e9
            else:
                align()
                bare = bare_block(steps)
        pairs.append((harness, bare))
    if rank == 0:
        arguments.out.write_text(json.dumps({"steps": steps, "pairs": pairs}), encoding="utf-8")
    leave(control)
    os._exit(0)


if __name__ == "__main__":
    main()
