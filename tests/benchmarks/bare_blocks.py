"""The loop of `bare_loop.py` in blocks of steps, in turn with another job's: rank 0 offers the turn before each.

DDPBENCH_TURN names the turnstile and the side. As in a launch of ddpbench in turn, ranks meet before a block, and its
first step is not counted.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from ddpbench.machine.turnstile import TURN, turn_from
from ddpbench.measure.blocks import BLOCKS_IN_TURN, IN_TURN
from tests.benchmarks import bare_loop


def agreed(number: int) -> int:
    """Return rank 0's number, when all ranks have come here."""
    tensor = torch.tensor([number])
    dist.broadcast(tensor, 0)
    dist.barrier()
    return int(tensor.item())


def block(step: Callable[[], object], steps: int) -> tuple[float, float, int]:
    """Return the time, the processor time and the minor page faults of `steps` steps, after one not counted."""
    step()
    faults, cpu, start = (
        resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
        time.process_time(),
        time.perf_counter(),
    )
    for _ in range(steps):
        step()
    end = time.perf_counter()
    cpu, faults = (
        time.process_time() - cpu,
        resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
    )
    dist.barrier()
    return end - start, cpu, faults


def main() -> None:
    arguments = bare_loop.asked()
    workload, model, optimizer, loader, sampler = bare_loop.prepared(arguments)
    turn = turn_from(TURN) if dist.get_rank() == 0 else None

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

    step = train().__next__
    began = time.perf_counter()
    for _ in range(arguments.warmup):
        step()
    rate = arguments.warmup / (time.perf_counter() - began)
    steps = agreed(max(IN_TURN.timed, int(arguments.seconds * rate / BLOCKS_IN_TURN)))
    found = []
    for number in range(BLOCKS_IN_TURN):
        if turn is not None:
            (turn.offer if number else turn.meet)()
        agreed(steps)
        found.append(block(step, steps))
    if dist.get_rank() == 0:
        step_s, cpu_s, faults = (sum(column) / steps / len(found) for column in zip(*found, strict=True))
        result = {"step_s": step_s, "cpu_s": cpu_s, "minor_faults": faults}
        arguments.out.write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
