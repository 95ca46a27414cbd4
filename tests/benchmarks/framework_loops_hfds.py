"""Training loops as the documentation of transformers and DeepSpeed shows them, for torchrun: no harness around them.

    torchrun --nproc-per-node 2 tests/benchmarks/framework_loops_hfds.py --loop deepspeed --workload cnn --out FILE

Each trains the workload's model by its optimizer, as the strategy of its name does. Rank 0 writes a JSON object with
the step time and the seconds spent in warm-up and measured steps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddpbench.workloads import Workload, load_workload

Moment = Callable[[], bool]
"""To be called after each step; returns whether it was the last."""


def hf_trainer_steps(
    workload: Workload[Any], loader: DataLoader[Any], sampler: DistributedSampler[Any], after: Moment
) -> None:
    """Train by `Trainer.train` until `after` says so, with everything beside training off."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    options = workload.options()
    model = workload.model(options)
    optimizer = workload.optimizer(model.parameters(), options)

    class Loader:
        """Batches as the Trainer takes them, endlessly."""

        def __iter__(self) -> Iterator[dict[str, Any]]:
            return ({"inputs": inputs, "targets": targets} for inputs, targets in endless(loader, sampler))

    class Mine(Trainer):
        def get_train_dataloader(self) -> Any:
            return Loader()

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            return workload.loss(model(inputs["inputs"]), inputs["targets"])

    class Stop(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = after()

    class Arguments(TrainingArguments):
        should_save = property(lambda _: False)

    arguments = Arguments(
        output_dir="unused",
        use_cpu=True,
        max_steps=10**9,
        per_device_train_batch_size=loader.batch_size or 1,
        max_grad_norm=0.0,
        remove_unused_columns=False,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        average_tokens_across_devices=False,
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = Mine(model=model, args=arguments, callbacks=[Stop()], optimizers=(optimizer, constant))
    trainer.train()


def deepspeed_steps(
    workload: Workload[Any],
    loader: DataLoader[Any],
    sampler: DistributedSampler[Any],
    after: Moment,
    stage: int = 1,
) -> None:
    """Train by an engine until `after` says so: forward, `backward` and `step`."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {
        "deepspeed_shm_comm": False
    }  # or it is compiled; only inference uses it
    options = workload.options()
    model = workload.model(options)
    optimizer = workload.optimizer(model.parameters(), options)
    config = {
        "train_micro_batch_size_per_gpu": loader.batch_size,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "timers": {"throughput": {"enabled": False}},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for inputs, targets in endless(loader, sampler):
        loss = workload.loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        if after():
            return


def endless(loader: DataLoader[Any], sampler: DistributedSampler[Any]) -> Iterator[Any]:
    """Batches of pass after pass."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


LOOPS: dict[str, Callable[..., None]] = {"hf_trainer": hf_trainer_steps, "deepspeed": deepspeed_steps}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=LOOPS, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--local-batch", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")

    workload = load_workload(arguments.workload)
    dataset = workload.dataset(workload.options())
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, drop_last=True)
    loader = DataLoader(dataset, batch_size=arguments.local_batch, sampler=sampler, drop_last=True)

    began = time.perf_counter()
    done, wanted, start, end = 0, 0, 0.0, 0.0

    def after() -> bool:
        nonlocal done, wanted, start, end
        done += 1
        if done == arguments.warmup:
            # As many steps as fill the time asked for, the same on all ranks.
            steps = torch.tensor([arguments.seconds * done / (time.perf_counter() - began)])
            dist.broadcast(steps, 0)
            wanted = max(10, int(steps.item()))
            dist.barrier()
            start = time.perf_counter()
        if not wanted or done < arguments.warmup + wanted:
            return False
        end = time.perf_counter()
        return True

    LOOPS[arguments.loop](workload, loader, sampler, after)
    if rank == 0:
        result = {"step_s": (end - start) / wanted, "steps": wanted, "measured_s": end - began}
        arguments.out.write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
