"""Training loops as people write them in each framework, in turn with blocks of the same framework's strategy.

    torchrun --nproc-per-node 2 tests/benchmarks/framework_loops.py --loop trainer --world-size 2 --out FILE

`--loop ray_train` is started by plain `python`, since Ray starts the ranks, and `tf_mirrored` has one process at any
world size. With `--against own` the other side is the same loop again, with its own model: the ratio shows what the
benchmark finds without a difference. With `--against bare` neither side is a loop: blocks of the strategy alternate
with blocks of plain torch, `ddp` or, at one rank, `single`, which shows what the wrapper costs in a step; a cost to the
entire process, such as a framework's threads, is on both sides. `--against ddp` uses DDP there at one rank, too, and
`--against itself` plain torch on both sides.

The loops know nothing of the harness: they have their own DataLoader and clock, and everything off that the strategy
has off. Each side trains its own model, of the same size. Rank 0 writes, as JSON, the pairs of times of equal numbers
of steps, and the losses of the second side and of the strategy, before and after.

The model that a process makes first may train a percent slower than the next one, probably because of where its memory
is: `--other-first` exchanges the two sides.
"""

from __future__ import annotations

import argparse
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.worker.device import device_of
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.control import leave, meet
from ddpbench.workloads import load_workload
from tests.benchmarks.pairing import Harness, Steps, add_arguments, in_turn, pin, write

LEAD_IN = 4
"""Steps before the timed ones, on both sides: DDP's buckets are final after two, and the caches hold the other side's
model at first."""


@dataclass(frozen=True, slots=True)
class Task:
    """Objects that a script makes before it uses a framework."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Any]
    loss: Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Own:
    """A loop that is ready to train."""

    steps: Steps
    loss: Callable[[], float]
    """Returns its model's loss on the same samples at each call."""


def accelerate_steps(task: Task) -> Steps:
    """Return the loop of Accelerate's documentation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(task.model, task.optimizer)
    batches = _endless(task.loader)

    def step() -> None:
        inputs, targets = next(batches)
        accelerator.backward(task.loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()

    return timed(step)


def fabric_steps(task: Task) -> Steps:
    """Return the loop of Fabric's documentation."""
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

    return timed(step)


def trainer_steps(task: Task) -> Steps:
    """Return a LightningModule with `Trainer.fit`, called for each requested time; a callback times its last steps."""
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

    sampler: Any = task.loader.sampler

    def steps(count: int) -> float:
        sampler.seed += 1  # each `fit` begins with the first epoch: the same few batches again and again
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


def hf_trainer_steps(task: Task) -> Steps:
    """Return a subclass of transformers' Trainer with `train`, called for each requested time; a callback times it."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    batches = _endless(task.loader)

    class Mine(Trainer):
        def get_train_dataloader(self) -> Any:
            return ({"inputs": inputs, "targets": targets} for inputs, targets in batches)

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            return task.loss(model(inputs["inputs"]), inputs["targets"])

    class Watch(TrainerCallback):
        def __init__(self, steps: int) -> None:
            self.ends = {LEAD_IN: 0.0, LEAD_IN + steps: 0.0}

        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in self.ends:
                self.ends[state.global_step] = time.perf_counter()

    class Arguments(TrainingArguments):
        should_save = property(lambda _: False)  # otherwise it makes a folder

    def steps(count: int) -> float:
        watch = Watch(count)
        arguments = Arguments(
            output_dir="unused",
            use_cpu=True,
            max_steps=LEAD_IN + count,
            per_device_train_batch_size=task.loader.batch_size,
            max_grad_norm=0.0,
            remove_unused_columns=False,
            logging_strategy="no",
            logging_nan_inf_filter=False,
            log_level="error",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            average_tokens_across_devices=False,
        )
        constant = torch.optim.lr_scheduler.LambdaLR(task.optimizer, lambda _: 1.0)
        trainer = Mine(
            model=task.model, args=arguments, callbacks=[watch], optimizers=(task.optimizer, constant)
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        first, last = watch.ends.values()
        return last - first

    return steps


def deepspeed_steps(task: Task) -> Steps:
    """Return the loop of DeepSpeed's guide: an engine's forward, `backward` and `step`."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # Otherwise it compiles an operation that only inference uses.
    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
    config = {
        "train_micro_batch_size_per_gpu": task.loader.batch_size,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # the default is 1.0
        "steps_per_print": sys.maxsize,
        "timers": {"throughput": {"enabled": False}},
    }
    engine, *_ = deepspeed.initialize(model=task.model, optimizer=task.optimizer, config=config)
    batches = _endless(task.loader)

    def step() -> None:
        inputs, targets = next(batches)
        engine.backward(task.loss(engine(inputs), targets))
        engine.step()

    return timed(step)


def ray_train_steps(task: Task) -> Steps:
    """Return the loop of Ray Train's documentation. `prepare_data_loader` would keep such a loader's sampler."""
    from ray.train.torch import prepare_model

    model = prepare_model(task.model)
    batches = _endless(task.loader)

    def step() -> None:
        inputs, targets = next(batches)
        task.loss(model(inputs), targets).backward()
        task.optimizer.step()
        task.optimizer.zero_grad()

    return timed(step)


def timed(step: Callable[[], None]) -> Steps:
    """Return a function that makes steps one after the other with a clock around them, after a few uncounted ones."""

    def steps(count: int) -> float:
        if dist.is_initialized():
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


def in_torch(make: Callable[[Task], Steps], case: Case) -> Own:
    """Return a loop with the objects that a script would make of a workload."""
    workload = load_workload(case.workload)
    options = workload.options()
    torch.manual_seed(0)
    model = workload.model(options)
    dataset = workload.dataset(options)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=case.local_batch, sampler=sampler, drop_last=True)
    some = next(iter(DataLoader(dataset, batch_size=64)))

    def loss() -> float:
        with torch.no_grad():
            return float(workload.loss(model(some[0]), some[1]))

    optimizer = workload.optimizer(model.parameters(), options)
    return Own(make(Task(model, optimizer, loader, workload.loss)), loss)


def in_tensorflow(case: Case) -> Own:
    """Return a loop of TensorFlow, which is not imported before."""
    from tests.benchmarks import framework_loops_tf

    return Own(*framework_loops_tf.loop(case))


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """A loop, and the strategy that it is compared with."""

    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """The strategy's options."""
    workload: str = "gpt:nano"
    local_batch: int = 4
    torch: Callable[[Task], Steps] | None = None
    """Makes the loop; None for TensorFlow's, or without a loop."""

    def own(self, case: Case) -> Own:
        return in_torch(self.torch, case) if self.torch is not None else in_tensorflow(case)


LOOPS = {
    "ddp": Loop(strategy="ddp"),
    "accelerate": Loop(strategy="accelerate", torch=accelerate_steps),
    "fabric": Loop(strategy="lightning", options={"api": "fabric"}, torch=fabric_steps),
    "trainer": Loop(strategy="lightning", options={"api": "trainer"}, torch=trainer_steps),
    "hf_trainer": Loop(strategy="hf_trainer", torch=hf_trainer_steps),
    "deepspeed": Loop(strategy="deepspeed", torch=deepspeed_steps),
    "ray_train": Loop(strategy="ray_train", torch=ray_train_steps),
    "tf_mirrored": Loop(strategy="tf_mirrored", workload="cnn:large", local_batch=80),
    "tf_multi_worker": Loop(strategy="tf_multi_worker", workload="cnn:large", local_batch=80),
}
"""The loops; bare DDP has no loop: it shows its own cost at one rank.

TensorFlow's steps take 4 to 80 ms, depending on the machine, of which batches are a small part. The two sides get
batches differently: from torch's DataLoader, which takes all digits of a batch at once, and from the iterators of
tf.distribute, which take 0.2 ms per step for one device and 0.45 ms for two. In the steps of `mlp:small`, of 1 ms, the
difference would be some percent.
"""


PLAIN_TORCH = ("bare", "ddp", "itself")
"""Values of `--against` for which the other side is not a loop."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Precisions by device."""


def measure(asked: argparse.Namespace, rank: int, processes: int) -> None:
    """Run a rank in which both sides train in turn."""
    loop = LOOPS[asked.loop]
    strategy = load_strategy(loop.strategy)
    workload = asked.workload or loop.workload
    local_batch = asked.local_batch or loop.local_batch
    if asked.device == "cpu":
        pin(rank, asked.world_size // processes)
    torch.set_num_threads(1)
    place = JobPlace(rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=())
    case = Case(
        workload=workload,
        strategy=loop.strategy,
        algorithm=strategy.algorithm,
        schedule=strategy.schedule,
        options_json=json.dumps(loop.options),
        device=asked.device,
        backend=BACKENDS[asked.device] if strategy.uses_backend else "",
        launcher=strategy.launcher or "local",
        world_size=asked.world_size,
        bucket_cap_mb="default" if strategy.uses_buckets else None,
        local_batch=local_batch,
        global_batch=local_batch * asked.world_size,
    )
    bare = _plain_torch(case, "ddp" if asked.against == "ddp" or asked.world_size > 1 else "single")
    measured = bare if asked.against == "itself" else case
    uses_backend = load_strategy(measured.strategy).uses_backend
    held = _alone(asked.lock, strategy.imports, asked.device)
    control = meet(measured, place, uses_backend=uses_backend, device=device_of(measured, place.local_rank))

    def make_other() -> Own:
        return _own(Harness(bare, place, control)) if asked.against in PLAIN_TORCH else loop.own(case)

    def make_first() -> Harness | Own:
        return loop.own(case) if asked.against == "own" else Harness(measured, place, control)

    if asked.other_first:
        other = make_other()
        first = make_first()
    else:
        first = make_first()
        other = make_other()
    harness = first if isinstance(first, Harness) else Harness(measured, place, control)
    losses, of_strategy = [other.loss()], [_loss(harness)]
    steps = harness.steps_of(asked.block_seconds)
    other.steps(steps)
    if isinstance(first, Own):
        first.steps(steps)
    gc.freeze()  # as in a rank of a sweep: a collection does not walk all of torch
    blocks = _blocks(first) if isinstance(first, Harness) else first.steps
    pairs = in_turn(blocks, other.steps, steps, control, asked)
    losses.append(other.loss())
    of_strategy.append(_loss(harness))
    if rank == 0:
        write(pairs, asked.out, steps=steps, losses=losses, losses_of_strategy=of_strategy)
    leave(control, borrowed=case.launcher != "local")
    if held is not None:
        held.close()


LOCKED_S = 90
"""Seconds for which a launch may hold the lock; one that hangs delays others no longer than this."""


def _alone(lock: Path | None, imports: Sequence[str], device: str) -> IO[bytes] | None:
    """Return a lock's file, locked once no other process holds it; None without a lock.

    Imports, and making a GPU's context, may run before that, while another trains.
    """
    if lock is None:
        return None
    for name in imports:
        importlib.import_module(name)
    (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()
    held = lock.open("wb")
    fcntl.flock(held, fcntl.LOCK_EX)
    faulthandler.dump_traceback_later(LOCKED_S, exit=True)
    return held


def _blocks(harness: Harness) -> Steps:
    def block(steps: int) -> float:
        for _ in range(LEAD_IN - 1):  # a block begins with one more
            harness.loop.step()
        return harness.block(steps)

    return block


def _plain_torch(case: Case, name: str) -> Case:
    """Return the same case without a framework, under this strategy."""
    strategy = load_strategy(name)
    return replace(
        case,
        strategy=name,
        algorithm=strategy.algorithm,
        schedule=strategy.schedule,
        options_json="{}",
        backend=BACKENDS[case.device] if strategy.uses_backend else "",
        bucket_cap_mb="default" if strategy.uses_buckets else None,
    )


def _own(harness: Harness) -> Own:
    return Own(_blocks(harness), lambda: _loss(harness))


def _loss(harness: Harness) -> float:
    """Return the loss of the harness's model on the same samples at each call."""
    training = harness.training
    workload = training.workload
    dataset = workload.dataset(workload.options())
    inputs, targets = next(iter(DataLoader(dataset, batch_size=64)))
    harness.replica.refresh_model()
    device = training.device
    with torch.no_grad():
        return float(workload.loss(harness.replica.job.model(inputs.to(device)), targets.to(device)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=LOOPS, required=True)
    parser.add_argument("--world-size", type=int, required=True, help="replicas")
    parser.add_argument("--against", choices=("strategy", "own", *PLAIN_TORCH), default="strategy")
    parser.add_argument("--workload", help="another than the loop's own")
    parser.add_argument("--local-batch", type=int, help="another than the loop's own")
    parser.add_argument("--other-first", action="store_true", help="make the other side's model first")
    parser.add_argument(
        "--device", choices=BACKENDS, default="cpu", help="cuda: without a framework's own loop"
    )
    parser.add_argument(
        "--lock", type=Path, help="train while no other launch has this file: it may start up then"
    )
    add_arguments(parser)
    asked = parser.parse_args()
    if asked.loop == "ddp" and asked.against not in ("bare", "ddp"):
        parser.error("bare DDP has no loop: use --against bare, or ddp for DDP on both sides")
    if asked.device == "cuda" and asked.against not in PLAIN_TORCH:
        parser.error("the loops train on CPUs: on a GPU a strategy is compared with plain torch only")
    if load_strategy(LOOPS[asked.loop].strategy).launcher == "ray":
        from tests.benchmarks import framework_loops_ray

        framework_loops_ray.start(asked)
        return
    measure(asked, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    os._exit(0)


if __name__ == "__main__":
    main()
