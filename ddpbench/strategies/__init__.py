"""The table of strategies, with a line on each; importing it imports neither torch nor pydantic."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from ddpbench.registry import Entry
from ddpbench.user_files import is_import_path

if TYPE_CHECKING:
    from ddpbench.spec import Case
    from ddpbench.strategies.base import PROMISES, Job, ModelFound, NoOptions, Promise, Replica, Strategy
    from ddpbench.strategies.hook import CompensatedHookStrategy, HookOptions, HookStrategy

TABLE: dict[str, Entry] = {
    "single": Entry(
        "ddpbench.strategies.single:Single",
        "one process without any aggregation: the base case",
    ),
    "independent": Entry(
        "ddpbench.strategies.independent:Independent",
        "ranks that compute side by side and aggregate nothing: the upper bound",
    ),
    "data_parallel": Entry(
        "ddpbench.strategies.data_parallel:DataParallel",
        "torch.nn.DataParallel: one process, one thread per replica, all gradients summed on one device",
    ),
    "ddp": Entry(
        "ddpbench.strategies.ddp.strategy:Ddp",
        "DistributedDataParallel: buckets of gradients are all-reduced during backward",
    ),
    "zero1": Entry(
        "ddpbench.strategies.zero1.strategy:Zero1",
        "DDP with ZeroRedundancyOptimizer: each rank updates its share of the parameters and broadcasts it",
    ),
    "fsdp": Entry(
        "ddpbench.strategies.fsdp.strategy:Fsdp",
        "fully_shard: each rank holds a shard of parameters, gradients and optimizer state; blocks are gathered",
    ),
    "post_local_sgd": Entry(
        "ddpbench.strategies.post_local_sgd.strategy:PostLocalSgd",
        "ranks train apart and average their parameters every few steps",
    ),
    "master": Entry(
        "ddpbench.strategies.master:Master",
        "rank 0 gathers all gradients after backward, averages them and sends them back",
    ),
    "async_server": Entry(
        "ddpbench.strategies.async_server.strategy:AsyncServer",
        "rank 0 serves parameters and applies every worker's gradient as it comes; no worker waits for another",
    ),
    "pipeline": Entry(
        "ddpbench.strategies.pipeline.strategy:Pipeline",
        "layers divided into stages, one per rank: microbatches and their activations pass from stage to stage",
    ),
    "branches": Entry(
        "ddpbench.strategies.branches.strategy:Branches",
        "branches side by side, one per rank: outputs go to rank 0's head, and their gradients come back",
    ),
    "accelerate": Entry(
        "ddpbench.strategies.frameworks.accelerate.strategy:Accelerate",
        "Hugging Face Accelerate: a plain loop, with model and optimizer prepared for DDP",
    ),
    "lightning": Entry(
        "ddpbench.strategies.frameworks.lightning.strategy:Lightning",
        "Lightning over DDP: its Trainer with Lightning's own loop, or its Fabric in a plain loop",
    ),
    "hf_trainer": Entry(
        "ddpbench.strategies.frameworks.hf_trainer.strategy:HfTrainer",
        "transformers.Trainer: DDP, set up and driven by Hugging Face's training loop",
    ),
    "deepspeed": Entry(
        "ddpbench.strategies.frameworks.deepspeed.strategy:DeepSpeed",
        "DeepSpeed's engine: ZeRO divides optimizer state and gradients among ranks",
    ),
    "ray_train": Entry(
        "ddpbench.strategies.frameworks.ray_train.strategy:RayTrain",
        "Ray Train's TorchTrainer, which starts the ranks, and its prepare_model, which sets up DDP",
    ),
    "tf_mirrored": Entry(
        "ddpbench.strategies.frameworks.tensorflow.strategy:TfMirrored",
        "TensorFlow's MirroredStrategy: one process, a Keras model on each logical device, gradients summed over them",
    ),
    "tf_multi_worker": Entry(
        "ddpbench.strategies.frameworks.tensorflow.strategy:TfMultiWorker",
        "TensorFlow's MultiWorkerMirroredStrategy: one Keras model per rank, gradients summed over gRPC",
    ),
}
"""Strategies by name, in the order of lists and legends."""


def load_strategy(name: str) -> Strategy[Any]:
    """Return the strategy with this name, importing the user's file of a name such as `mine.py:TopK`.

    Code that only reads runs must use `ddpbench.strategies.traits`, which imports no user code.

    Raises:
        KeyError: no strategy has that name.
        StrategyError: the user's file or module cannot be imported, or its class is not a strategy.
    """
    if is_import_path(name):
        from ddpbench.strategies.own import own_strategy

        return own_strategy(name)
    return _shipped(name)


@cache
def _shipped(name: str) -> Strategy[Any]:
    strategy: Strategy[Any] = TABLE[name].load()()
    return strategy


def early_imports(case: Case) -> tuple[str, ...]:
    """Return the names of modules to import before a case's ranks are forked.

    The tuple is empty for a user's strategy, which only ranks import.
    """
    return load_strategy(case.strategy).imports if case.strategy in TABLE else ()


def own_step_reason(case: Case) -> str | None:
    """Return why a workload with its own steps cannot run in this case, or None."""
    if case.precision != "full":
        return f"a step() of the class's own decides on autocast: it cannot run under precision = {case.precision!r}"
    return load_strategy(case.strategy).step_reason(case)


def stream_reason(case: Case) -> str | None:
    """Return why an iterable dataset, which divides its samples itself, cannot be used in this case, or None."""
    strategy = load_strategy(case.strategy)
    processes = 1 if strategy.one_process else case.world_size
    if processes == 1 or all(strategy.dealt(case, rank) == (rank, processes) for rank in range(processes)):
        return None
    return (
        f"the dataset divides its samples among {processes} ranks itself, but {case.strategy} needs another "
        "division: give a map-style dataset, or a loader(rank, world_size, batch)"
    )


def found_reason(case: Case, found: ModelFound) -> str | None:
    """Return why a model with these properties cannot be trained in this case, or None."""
    narrow = {"fp16": "float16", "bf16": "bfloat16"}.get(case.precision)
    if narrow is not None and found.trained and "float32" not in found.trained:
        return (
            f"autocast leaves {found.words} as it is: {case.precision} needs a model with float32 parameters, or "
            'dtype = "float32"'
        )
    if case.precision == "fp16" and (found.are_complex or "float16" in found.trained):
        return (
            f'fp16 scales gradients, which torch does not do for {found.words}: set precision = "bf16" or '
            '"full"'
        )
    if case.backend == "mpi" and found.are_complex:
        return f'MPI sends real numbers only, and this model trains {found.words}: set backend = "gloo"'
    strategy = load_strategy(case.strategy)
    averages = strategy.aggregates and not strategy.one_process and case.world_size > 1
    if found.updates_in_backward and averages:
        return (
            "the class's optimizers step during backward, for example in hooks of parameters, but "
            f"{case.strategy} averages gradients at the end of backward: have step() call the optimizers after "
            "backward()"
        )
    if found.unreached and averages:
        return (
            "the class's step sets gradients without backward(), for example with torch.autograd.grad or "
            f"torch.func, but {case.strategy} averages gradients at the end of a backward(): have step() call "
            "backward(), or average the gradients in step() with torch.distributed.all_reduce"
        )
    return strategy.found_reason(case, found)


_OF_HOOKS = ("CompensatedHookStrategy", "HookOptions", "HookStrategy")
__all__ = [
    "PROMISES",
    "TABLE",
    "CompensatedHookStrategy",
    "Entry",
    "HookOptions",
    "HookStrategy",
    "Job",
    "ModelFound",
    "NoOptions",
    "Promise",
    "Replica",
    "Strategy",
    "early_imports",
    "found_reason",
    "is_import_path",
    "load_strategy",
    "own_step_reason",
    "stream_reason",
]


def __getattr__(name: str) -> Any:
    """Import names of `base` or `hook` on first use, because their pydantic models take long to import."""
    if name in _OF_HOOKS:
        return getattr(importlib.import_module("ddpbench.strategies.hook"), name)
    if name in __all__:
        return getattr(importlib.import_module("ddpbench.strategies.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
