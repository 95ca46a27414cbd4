"""Blocks of the harness and of a hand-written loop in turn, on the same objects, in one torchrun job.

    torchrun --nproc-per-node 2 tests/benchmarks/alternating.py --strategy ddp --workload gpt:nano --out FILE

With `--against timed`, blocks of instrumented steps and of timed ones alternate, each side with its own model; with
`--against itself`, both sides are timed steps, so that the ratio shows what the benchmark finds without a difference.
`--timed-first` makes the timed side's model first: the first may train a percent slower. Rank 0 writes the pairs of
block times as JSON. The side that goes first alternates, so that drift cancels.
"""

from __future__ import annotations

import argparse
import gc
import os
import time

import torch

from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import StepRecorder
from ddpbench.spec import Case
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.control import leave
from tests.benchmarks.pairing import Harness, Steps, add_arguments, in_turn, pin, write

BARE = ("single", "ddp", "data_parallel")
NOTED = ("master", "pipeline")
"""Strategies with a bare loop, and others that note their steps."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=[*BARE, *NOTED], required=True)
    parser.add_argument("--against", choices=["bare", "timed", "itself"], default="bare")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--workload-options", default="{}", help="as JSON")
    parser.add_argument("--options", default="{}", help="of the strategy, as JSON")
    parser.add_argument("--local-batch", type=int, default=4)
    parser.add_argument(
        "--world-size",
        type=int,
        required=True,
        help="replicas, of pipeline its ranks; data_parallel has them in one process",
    )
    parser.add_argument("--timed-first", action="store_true", help="make the timed side's model first")
    add_arguments(parser)
    arguments = parser.parse_args()

    if arguments.strategy in NOTED and arguments.against == "bare":
        parser.error(f"a bare loop has no {arguments.strategy}: use --against timed or itself")
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = JobPlace(rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=())
    if arguments.strategy != "data_parallel":
        pin(rank)
    torch.set_num_threads(1)
    case = Case(
        workload=arguments.workload,
        strategy=arguments.strategy,
        world_size=arguments.world_size,
        bucket_cap_mb="default",
        options_json=arguments.options,
        workload_options_json=arguments.workload_options,
        local_batch=arguments.local_batch,
        global_batch=arguments.local_batch * arguments.world_size,
    )
    if arguments.against == "bare":
        harness = Harness(case, place)
        sides = harness.block, bare(harness)
    else:
        kept = StepRecorder(HostClock()) if arguments.against == "timed" else None
        if arguments.timed_first:
            harness = Harness(case, place)
            other = Harness(case, place, harness.control, kept)
        else:
            other = Harness(case, place, kept=kept)
            harness = Harness(case, place, other.control)
        sides = other.block, harness.block
        other.steps_of(arguments.block_seconds)
    gc.freeze()  # as in a rank of a sweep: a collection does not walk all of torch
    steps = harness.steps_of(arguments.block_seconds)
    pairs = in_turn(*sides, steps, harness.control, arguments)
    if rank == 0:
        write(pairs, arguments.out, steps=steps)
    leave(harness.control)
    os._exit(0)


def bare(harness: Harness) -> Steps:
    """Return a hand-written training loop on the same objects, with a clock around it."""
    training, loop, replica, batches = harness.training, harness.loop, harness.replica, harness.batches
    optimizer, loss_of = replica.optimizer, training.workload.loss
    module = getattr(replica, "_wrapped", replica.job.model)

    def block(steps: int) -> float:
        harness.control.agree(0)  # the same start as the harness has: together, one step after a barrier
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


if __name__ == "__main__":
    main()
