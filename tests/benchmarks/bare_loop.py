"""A training loop as anyone would write it, for torchrun: no harness, a clock around the steps.

    torchrun --nproc-per-node 2 tests/benchmarks/bare_loop.py --strategy ddp --workload gpt:nano --out FILE

Rank 0 writes a JSON object with its step time, its processor time and minor page faults per step, and the seconds it
spent in warm-up and measured steps.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler

from ddpbench.workloads import Workload, load_workload


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=["single", "ddp"], required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--local-batch", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def prepared(
    arguments: argparse.Namespace,
) -> tuple[Workload, nn.Module, Optimizer, DataLoader[Any], DistributedSampler[Any]]:
    """Join the job, and return the objects that the loop trains with."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")

    workload = load_workload(arguments.workload)
    options = workload.options()
    model = workload.model(options)
    optimizer = workload.optimizer(model.parameters(), options)
    if arguments.strategy == "ddp":
        model = DistributedDataParallel(model)
    dataset = workload.dataset(options)
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, drop_last=True)
    loader = DataLoader(dataset, batch_size=arguments.local_batch, sampler=sampler, drop_last=True)
    return workload, model, optimizer, loader, sampler


def main() -> None:
    arguments = asked()
    workload, model, optimizer, loader, sampler = prepared(arguments)
    began = time.perf_counter()
    epoch, step, steps, start, cpu, faults = 0, 0, None, 0.0, 0.0, 0
    while steps is None or step < arguments.warmup + steps:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = workload.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step == arguments.warmup:
                # The number of steps that fill the requested time, the same on all ranks.
                wanted = torch.tensor([arguments.seconds * step / (time.perf_counter() - began)])
                dist.broadcast(wanted, 0)
                steps = max(10, int(wanted.item()))
                dist.barrier()
                faults, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
                start = time.perf_counter()
            if steps is not None and step == arguments.warmup + steps:
                break
        epoch += 1
    end = time.perf_counter()
    cpu = time.process_time() - cpu
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    if dist.get_rank() == 0:
        result = {
            "step_s": (end - start) / steps,
            "steps": steps,
            "measured_s": end - began,
            "cpu_s": cpu / steps,
            "minor_faults": faults / steps,
        }
        arguments.out.write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
