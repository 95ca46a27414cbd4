"""The loop of `bare_loop.py` in blocks of steps, in turn with another job's: rank 0 offers the turn before each.

DDPBENCH_TURN names the turnstile and the side. Blocks begin, end and are cut as in a launch of ddpbench in turn, by
`ddpbench.measure.blocks`: otherwise the sides would differ in their first steps, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

import torch.distributed as dist

from ddpbench.measure.blocks import IN_TURN, AloneControl, Stepper, timed_blocks, warm_up
from ddpbench.measure.clock import HostClock
from ddpbench.records import Block
from ddpbench.records.request import INTERLEAVED_BLOCKS
from ddpbench.runtime.turnstile import TURN, turn_from
from ddpbench.worker.training.control import GroupControl
from tests.benchmarks import bare_loop


def of_blocks(blocks: Sequence[Block]) -> tuple[float, float, float]:
    """Return a step's time and processor time, seconds, and its minor page faults."""
    steps = sum(block.steps for block in blocks)
    return (
        sum(block.end_ns - block.start_ns for block in blocks) / steps / 1e9,
        sum(block.cpu_ns for block in blocks) / steps / 1e9,
        sum(block.minor_faults for block in blocks) / steps,
    )


def main() -> None:
    arguments = bare_loop.asked()
    workload, model, optimizer, loader, sampler = bare_loop.prepared(arguments)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    turn = turn_from(TURN) if rank == 0 else None
    control = GroupControl(dist.new_group(backend="gloo"), rank) if ranks > 1 else AloneControl()

    def train() -> Iterator[None]:
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            for inputs, targets in loader:
                loss = workload.loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                yield
            epoch += 1

    def offered(*, meet: bool) -> int:
        control.agree(0)
        return 0 if turn is None else (turn.meet if meet else turn.offer)()

    step = train().__next__
    stepper = Stepper(step, arguments.local_batch, HostClock(), control, turn=offered)
    for _ in range(arguments.warmup):
        step()
    warm = warm_up(stepper, lambda: True, arguments.seconds, IN_TURN)
    blocks = list(timed_blocks(stepper, arguments.seconds, warm.step_ns, IN_TURN, INTERLEAVED_BLOCKS))
    if rank == 0:
        result = dict(zip(("step_s", "cpu_s", "minor_faults"), of_blocks(blocks), strict=True))
        arguments.out.write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
