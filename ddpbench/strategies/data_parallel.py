"""The `data_parallel` strategy: torch.nn.DataParallel on GPUs, and its threaded equivalent on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ddpbench.spec import Case
from ddpbench.strategies.base import CannotTrainError, Job, NoOptions, Replica, Strategy
from ddpbench.strategies.local import LocalReplica
from ddpbench.strategies.trees import chunk, map_tensors

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ddpbench.strategies.own_step import OwnStep

T = TypeVar("T")


class DataParallel(Strategy[NoOptions]):
    """Data parallelism in one process: scatter the batch, replicate the model, gather the outputs.

    Batches have `local_batch * world_size` samples. The loss is the mean over all of them, so the sum of the replicas'
    gradients equals other strategies' average.
    """

    name = "data_parallel"
    display = "DataParallel"
    on_cpu = "(threads)"
    colour, marker = "#CC79A7", "^"
    options = NoOptions
    algorithm = "master"
    schedule = "after_backward"
    uses_backend = False
    one_process = True
    note = (
        "On the CPU torch.nn.DataParallel only calls the module, so its steps are redone here: one thread per "
        "replica on separate cores, parameters copied to every replica in every step, outputs gathered and "
        "gradients summed on the master."
    )

    def step_reason(self, case: Case) -> None:
        return None

    def build(self, job: Job, options: NoOptions) -> Replica:
        if job.world_size == 1:
            return LocalReplica(job)  # with one device, torch.nn.DataParallel only calls the module
        return CudaReplica(job) if job.device.type == "cuda" else ThreadedReplica(job)


class CudaReplica(Replica):
    """torch.nn.DataParallel over the first `world_size` GPUs. Its phases are recorded in the calling thread.

    Autograd sums the gradients, so the `backward` span includes the sum.

    Raises:
        ValueError: there are too few GPUs.
    """

    def __init__(self, job: Job) -> None:
        import torch

        super().__init__(job)
        here = torch.cuda.device_count()
        if here < job.world_size:
            raise ValueError(
                f"data_parallel at world size {job.world_size} needs {job.world_size} GPUs; found {here}"
            )
        check_replicable(job.model)
        devices = list(range(job.world_size))
        self._own: OwnStep | None = None
        if job.step is not None:
            from ddpbench.strategies.own_step import OwnStep, each_part, network_of

            optimizers: Any = self.optimizer
            network = each_part(network_of(job), lambda part: torch.nn.DataParallel(part, device_ids=devices))
            self._own = OwnStep(job, network, optimizers)
            return
        self._parallel = torch.nn.DataParallel(job.model, device_ids=devices)
        phases = {
            "scatter": "scatter",
            "replicate": "replicate",
            "parallel_apply": "forward",
            "gather": "gather",
        }
        for method, span in phases.items():
            setattr(self._parallel, method, self._noted(span, getattr(self._parallel, method)))

    def own_step(self, batch: Any) -> torch.Tensor:
        assert self._own is not None
        return self._own(batch)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        job = self.job
        outputs = self._parallel(inputs)
        with job.recorder.span("forward"):
            loss = job.loss(outputs, targets)
        with job.recorder.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _noted(self, span: str, method: Callable[..., T]) -> Callable[..., T]:
        def noted(*args: Any, **kwargs: Any) -> T:
            with self.job.recorder.span(span):
                return method(*args, **kwargs)

        return noted


class ThreadedReplica(Replica):
    """torch.nn.DataParallel's steps on the CPU, phase by phase.

    Replica i runs in thread i with `threads_per_rank` threads, on separate cores if there are enough. As on GPUs,
    replica 0 works on the model's own parameters and buffers, and other replicas' writes to buffers are lost. The loss
    of the gathered outputs is a second `forward` span.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._threads = [
            ThreadPoolExecutor(1, f"replica-{number}", _prepare_thread, (cores, job.case.threads_per_rank))
            for number, cores in enumerate(core_shares(sorted(os.sched_getaffinity(0)), job.world_size))
        ]
        self._own: OwnStep | None = None
        self._begin: Callable[[int], None] | None = None

    def take_turns(self, begin: Callable[[int], None]) -> bool:
        self._begin = begin
        return True

    def own_step(self, batch: Any) -> torch.Tensor:
        if self._own is None:
            from ddpbench.strategies.own_step import OwnStep, each_part, network_of
            from ddpbench.strategies.threaded_module import ThreadedModule

            optimizers: Any = self.optimizer

            def threaded(part: nn.Module) -> nn.Module:
                return ThreadedModule(part, self.job.world_size, self._on_all, replicate)

            self._own = OwnStep(self.job, each_part(network_of(self.job), threaded), optimizers)
        return self._own(batch)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        import torch
        from torch import clone

        recorder, count = self.job.recorder, self.job.world_size
        with recorder.span("scatter"):
            shards = [
                map_tensors(clone, shard) for shard in chunk(inputs, count)
            ]  # separate memory, as on several devices
        with recorder.span("replicate"):
            replicas = [replicate(self.job.model, alias=number == 0) for number in range(count)]
        with recorder.span("forward"):
            outputs = self._forward([module for module, _ in replicas], [(shard,) for shard in shards])
        with recorder.span("gather"):
            # Detached from the replicas' graphs, so that each graph is walked by its own thread below: a backward from
            # the gathered loss would walk all of them in this thread.
            leaves = [output.detach().requires_grad_() for output in outputs]
            gathered = torch.cat(leaves)
        with recorder.span("forward"):
            loss = self.job.loss(gathered, targets)
        with recorder.span("backward"):
            slopes = torch.autograd.grad(loss, leaves)
            self._backward(list(zip(outputs, slopes, strict=True)))
        with recorder.span("reduce"):
            self._reduce([parameters for _, parameters in replicas])
        return loss.detach()

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()

    def _forward(self, modules: Sequence[nn.Module], shards: Sequence[tuple[Any, ...]]) -> list[torch.Tensor]:
        if self._begin is None:
            return self._on_all(modules, shards)
        outputs = []
        for number, (thread, module, shard) in enumerate(zip(self._threads, modules, shards, strict=True)):
            self._begin(number)
            outputs.append(thread.submit(module, *shard).result())
        return outputs

    def _backward(self, walks: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        import torch

        if self._begin is None:
            self._on_all([torch.autograd.backward] * len(walks), walks)
            return
        for thread, walk in zip(self._threads, walks, strict=True):
            with _draws_repeated() as seen:
                thread.submit(torch.autograd.backward, *walk).result()
            if seen:
                raise CannotTrainError(
                    "its backward pass repeats random numbers of the forward pass, as checkpointing does for "
                    "dropout. On CPUs, replicas are threads that share one random generator, so the numbers "
                    "would differ"
                )

    def _on_all(self, functions: Sequence[Callable[..., T]], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        jobs = zip(self._threads, functions, arguments, strict=True)
        futures = [thread.submit(function, *given) for thread, function, given in jobs]
        wait(futures)
        return [future.result() for future in futures]

    def _reduce(self, replicas: list[dict[torch.Tensor, torch.Tensor]]) -> None:
        """Sum gradients in replica order, into the model's parameters and their hooks."""
        import torch

        for parameter in self.job.model.parameters():
            parts = [
                copy.grad for copy in (replica[parameter] for replica in replicas) if copy.grad is not None
            ]
            if not parts:
                continue
            total, *others = parts
            for other in others:
                total.add_(other)
            parameter.grad = total
            if _has_hooks(parameter):
                parameter.grad = None
                torch.autograd.backward(parameter, total)


@contextmanager
def _draws_repeated() -> Iterator[list[bool]]:
    """Yield a list that becomes non-empty if random state is reset to repeat draws, as checkpointing does."""
    import torch

    original = torch.set_rng_state
    seen: list[bool] = []
    last: list[torch.Tensor] = []

    def noted(new_state: torch.Tensor) -> None:
        if last and not torch.equal(torch.get_rng_state(), last[-1]):
            seen.append(True)
        last.append(new_state)
        original(new_state)

    torch.set_rng_state = noted
    try:
        yield seen
    finally:
        torch.set_rng_state = original


def _has_hooks(parameter: torch.Tensor) -> bool:
    return any(getattr(parameter, kind, None) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"))


def core_shares(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Divide `cores` among `count` threads, and return each thread's cores.

    The parts are equal and consecutive. With fewer cores than threads, several threads use the same core.
    """
    size = len(cores) // count
    if size == 0:
        return [(cores[number % len(cores)],) for number in range(count)]
    return [tuple(cores[number * size : (number + 1) * size]) for number in range(count)]


def _prepare_thread(cores: tuple[int, ...], threads: int) -> None:
    import torch

    os.sched_setaffinity(0, cores)  # 0 is the calling thread, and OpenMP's helpers inherit from it
    torch.set_num_threads(threads)


def check_replicable(model: nn.Module) -> None:
    """Check that a model has no compiled or scripted modules, whose replicas would use the original parameters.

    Raises:
        CannotTrainError: the model has such a module.
    """
    import torch

    for name, module in model.named_modules():
        what = ""
        if (
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
        ):
            what = "compiled with torch.compile"
        elif isinstance(module, torch.jit.ScriptModule):
            what = "a script of torch.jit"
        if what:
            raise CannotTrainError(
                f"its module {name or type(module).__name__} is {what}; a replica would still compute with the "
                "original module's parameters, so torch.nn.DataParallel cannot replicate it"
            )


def replicate(module: nn.Module, *, alias: bool) -> tuple[nn.Module, dict[torch.Tensor, torch.Tensor]]:
    """Return a replica of a module, and a dict that maps the module's parameters to the replica's parameters.

    The replica's parameters are separate leaves, so gradients stay with the replica. With `alias`, the replica's
    parameters share the module's memory, and the replica has the module's own buffers. Otherwise parameters and buffers
    are copies. Tied weights stay tied in the replica. The code follows torch/nn/parallel/replicate.py.
    """
    from torch import nn

    check_replicable(module)
    parameters: dict[torch.Tensor, torch.Tensor] = {}
    for parameter in module.parameters():
        data = parameter.detach() if alias else parameter.detach().clone()
        parameters[parameter] = nn.Parameter(data, requires_grad=parameter.requires_grad)
    buffers = {buffer: buffer if alias else buffer.clone() for buffer in module.buffers()}
    parts: dict[nn.Module, Any] = {
        part: part._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        for part in module.modules()
    }
    for part, copy in parts.items():
        copy._modules = {
            name: None if child is None else parts[child] for name, child in part._modules.items()
        }
        copy._buffers = {name: None if own is None else buffers[own] for name, own in part._buffers.items()}
        for name, own in part._parameters.items():
            if own is None:
                copy._parameters[name] = None
            else:
                setattr(copy, name, parameters[own])  # modules such as LSTM keep lists of their weights
    replica: nn.Module = parts[module]
    return replica, parameters
