"""A rank's replica under fully_shard: how the model is sharded, and how collectives are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from ddpbench.measure.clock import Mark
from ddpbench.measure.recorder import Recorder
from ddpbench.strategies.base import CannotTrainError, Job, hooked_parameters
from ddpbench.strategies.fsdp import FsdpOptions
from ddpbench.strategies.fsdp.lost import LostParts
from ddpbench.strategies.local import LocalReplica
from ddpbench.strategies.own_step import each_part, network_of
from ddpbench.units import series_of

# Torch 2.13 has new names for these collectives and warns about the old ones.
_all_gather: Callable[..., dist.Work | None] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
_reduce_scatter: Callable[..., dist.Work | None] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


class FsdpReplica(LocalReplica):
    """Replica that trains this rank's shard of the model.

    The job's model itself is sharded, and stays sharded after `close`. A later replica reuses these shards, with any
    options. Parameters that the loss does not reach have no gradient.
    """

    def __init__(self, job: Job, options: FsdpOptions) -> None:
        self._hooked: list[str] = []
        if not _sharded(job.model):
            self._hooked = hooked_parameters(job.model)
            mesh = _mesh(job, options.replicas)
            if job.step is None:
                _shard(job, job.model, options, mesh)
            else:
                each_part(network_of(job), lambda part: _shard(job, part, options, mesh))
        super().__init__(job)  # only after sharding, so that the optimizer gets the shards
        self._used = UsedBlocks(job.model)
        self._options = options
        self._comms: list[NotedCollective] = []
        # On a GPU, collectives run on FSDP's own streams, and it is not visible when the computing stream waits for
        # them, so records would count such waiting as computation.
        if job.recorder.active and job.device.type == "cpu":
            for number, module in enumerate(_sharded(job.model)):
                self._note(number, module)

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        self._used.begin()
        loss = super()._loss(inputs, targets)
        self._used.check()
        return loss

    def own_parameters(self) -> dict[str, torch.Tensor]:
        return {name: _whole(parameter.detach()) for name, parameter in self._trained()}

    def own_gradients(self) -> dict[str, torch.Tensor]:
        return {
            name: torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            if parameter.grad is None
            else _whole(parameter.grad)
            for name, parameter in self._trained()
        }

    def watch_steps(self) -> LostParts:
        return LostParts(self.job.model, self._hooked, in_blocks=self._options.wrap == "blocks")

    def close(self) -> None:
        self._used.close()
        for comm in self._comms:
            comm.recorder = None
        for parameter in self.job.model.parameters():
            parameter.grad = None

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, each) for name, each in self.job.model.named_parameters() if each.requires_grad)

    def _note(self, number: int, module: FSDPModule) -> None:
        recorder, replicas = self.job.recorder, self._options.replicas
        shards = self.job.world_size // replicas
        replica, shard = divmod(self.job.rank, shards)
        own = number * replicas + replica  # not the other replicas', which communicate at the same time
        gather, scatter = NotedGather(recorder, own, shards), NotedScatter(recorder, own, shards)
        module.set_custom_all_gather(gather)  # type: ignore[arg-type]  # its base class is not public
        module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
        self._comms += [gather, scatter]
        if replicas > 1:
            reduce = NotedReduce(recorder, number * shards + shard, replicas, after=scatter)
            module.set_all_reduce_hook(reduce)
            self._comms.append(reduce)


def _mesh(job: Job, replicas: int) -> DeviceMesh:
    if replicas == 1:
        return init_device_mesh(job.device.type, (job.world_size,))
    return init_device_mesh(
        job.device.type, (replicas, job.world_size // replicas), mesh_dim_names=("replicate", "shard")
    )


def _shard(job: Job, model: nn.Module, options: FsdpOptions, mesh: DeviceMesh) -> nn.Module:
    # torch's default, None, reshards blocks but not the root, whose parameters are needed again at once.
    again = None if options.reshard_after_forward else False
    if options.wrap == "blocks":
        for block in blocks(model):
            fully_shard(block, mesh=mesh, reshard_after_forward=again)
    elif options.reshard_after_forward:
        again = True
    fully_shard(model, mesh=mesh, reshard_after_forward=again)
    if (
        job.case.backend == "gloo"
    ):  # asked for an average of float32, gloo returned the sum: pytorch/pytorch issue 162338
        for module in _sharded(model):
            module.set_force_sum_reduction_for_comms(True)
    return model


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return, in order, the children of the model's outermost ModuleLists and Sequentials.

    Children without parameters are left out. A child that is only a list or dict of modules is replaced by its
    children.
    """
    if isinstance(model, nn.ModuleList | nn.Sequential):
        return [block for child in model.children() for block in _called(child)]
    return [block for child in model.children() for block in blocks(child)]


def _called(module: nn.Module) -> list[nn.Module]:
    """Return [module], or [] without parameters; a ModuleList without a forward becomes its children."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict) and type(module).forward is nn.Module.forward:
        return [each for child in module.children() for each in _called(child)]
    return [module] if next(module.parameters(), None) is not None else []


def mixes_types(model: nn.Module) -> bool:
    """Return whether some block, or the part outside all blocks, trains parameters of more than one dtype."""
    within = {id(each): number for number, block in enumerate(blocks(model)) for each in block.parameters()}
    types: dict[int, set[torch.dtype]] = {}
    for each in model.parameters():
        if each.requires_grad:
            types.setdefault(within.get(id(each), -1), set()).add(each.dtype)
    return any(len(found) > 1 for found in types.values())


def _sharded(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a sharded tensor from all ranks.

    Raises:
        CannotTrainError: the tensor is not sharded, because FSDP's hooks missed the backward that made it.
    """
    if not isinstance(tensor, DTensor):
        raise CannotTrainError(
            "FSDP did not shard or average a gradient, because its hooks missed the backward pass that made the "
            "gradient. If a module is used twice under reentrant activation checkpointing, checkpoint with "
            "use_reentrant=False"
        )
    whole: torch.Tensor = tensor.full_tensor()
    return whole


class UsedBlocks:
    """Checks that each forward of a sharded model uses the same blocks.

    Each block is a collective of all ranks. If a forward uses other blocks on one rank than on another, as a mixture of
    experts may, ranks wait for one another, or one rank's weights go into another rank's block.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(each): name for name, each in model.named_modules() if isinstance(each, FSDPModule)}
        self._now: set[int] = set()
        self._usual: set[int] = set()
        """The blocks that the first forward used."""
        modules = [each for each in model.modules() if id(each) in self._names]
        self._hooks = [each.register_forward_pre_hook(self._note) for each in modules if len(modules) > 1]

    def begin(self) -> None:
        """Begin a forward."""
        self._now.clear()

    def check(self) -> None:
        """Compare the blocks that the forward has used with those of the first forward.

        Raises:
            RuntimeError: they differ.
        """
        self._usual = self._usual or set(self._now)
        if self._now != self._usual:
            names = sorted(self._names[each].removeprefix("network.") for each in self._now ^ self._usual)
            raise RuntimeError(
                f"the model uses {series_of(names)} in only some steps, but fsdp's ranks gather every block "
                "together, so they would wait for one another or train wrong weights: use master, or ddp with "
                "options.ddp.find_unused_parameters = true"
            )

    def close(self) -> None:
        """Remove the hooks."""
        for each in self._hooks:
            each.remove()

    def _note(self, module: nn.Module, _inputs: Any) -> None:
        self._now.add(id(module))


class NotedCollective:
    """Replaces a collective of one FSDP module, and records each transfer and the rank's wait for it."""

    ended: Mark = None
    """Time at which the last call ended."""

    def __init__(self, recorder: Recorder, number: int, ranks: int) -> None:
        self.recorder: Recorder | None = recorder
        self._number, self._ranks = number, ranks

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a buffer for the collective."""
        return torch.empty(*size, dtype=dtype, device=device)

    def noted(self, op: str, whole: torch.Tensor, call: Callable[[], dist.Work | None]) -> dist.Work | None:
        """Call and record a blocking collective, and return its result. The recorded size is the size of `whole`."""
        if self.recorder is None:
            return call()
        start = self.recorder.mark()
        work = call()
        self.note(op, whole, start)
        return work

    def note(self, op: str, whole: torch.Tensor, start: Mark) -> None:
        """Record a transfer that began at `start` and has just ended, and a span of waiting for it."""
        assert self.recorder is not None
        self.ended = end = self.recorder.mark()
        size = whole.numel() * whole.element_size()
        self.recorder.add_transfer(
            bucket=self._number, op=op, size=size, start=start, end=end, ranks=self._ranks
        )
        self.recorder.add_span("synchronize", start, end)


class NotedGather(NotedCollective):
    """The recorded all-gather of a module's parameters."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        def call() -> dist.Work | None:
            return _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)

        return self.noted("all_gather", output_tensor, call)


class NotedScatter(NotedCollective):
    """The recorded reduce-scatter of a module's gradients."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        def call() -> dist.Work | None:
            return _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)

        return self.noted("reduce_scatter", input_tensor, call)


class NotedReduce(NotedCollective):
    """Records the all-reduce of a shard's gradients between replicas. FSDP does the all-reduce, then calls this object.

    The all-reduce begins right after the module's reduce-scatter.
    """

    def __init__(self, recorder: Recorder, number: int, ranks: int, *, after: NotedScatter) -> None:
        super().__init__(recorder, number, ranks)
        self._after = after

    def __call__(self, reduced: torch.Tensor) -> None:
        if self.recorder is not None:
            self.note("all_reduce", reduced, self._after.ended)
