"""The `master` strategy: after backward, rank 0 gathers all gradients, averages them and sends them back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, NoOptions, Replica, Strategy, dense_reason
from ddpbench.strategies.trees import as_real

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ddpbench.strategies.own_step import OwnStep


class Master(Strategy[NoOptions]):
    """The simplest parameter server: rank 0 is the server for all ranks.

    With n ranks and S bytes of gradients, the link of rank 0 carries 2(n-1)·S bytes per step, and every link of a ring
    2(n-1)/n·S. A parameter that the loss does not reach gets a gradient of zeros, and so weight decay and momentum. DDP
    without find_unused_parameters fails on such a parameter.
    """

    name = "master"
    colour, marker = "#000000", "v"
    options = NoOptions
    algorithm = "master"
    schedule = "after_backward"

    def step_reason(self, case: Case) -> None:
        return None

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        return dense_reason(self.name) if sparse else None

    def build(self, job: Job, options: NoOptions) -> Replica:
        return MasterReplica(job)


@dataclass(slots=True)
class _Flat:
    """Trained parameters of one dtype, a gradient buffer and its views; on rank 0, one buffer per rank."""

    parameters: list[torch.Tensor]
    buffer: torch.Tensor
    views: list[torch.Tensor]
    gathered: list[torch.Tensor] | None


def _note(reached: set[int], number: int, _parameter: torch.Tensor) -> None:
    reached.add(number)


class MasterReplica(Replica):
    """A model whose gradients are sent to rank 0, averaged there, and sent back."""

    def __init__(self, job: Job) -> None:
        import torch.distributed as dist

        super().__init__(job)
        for tensor in (*job.model.parameters(), *job.model.buffers()):
            dist.broadcast(as_real(tensor.detach()), src=0)
        self._trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
        self._flats = [] if job.step is not None else self._flats_of(self._trained)
        self._own: OwnStep | None = None
        self._buffers: dict[frozenset[int], list[_Flat]] = {}
        """Buffers for a workload's own step, for each set of parameters that a backward has reached.

        Keys are the parameters' indices.
        """
        self._reached: set[int] = set()
        """Indices of the parameters that the current backward has reached."""
        self._hooks: list[Any] = []
        self._sent = 0

    def _flats_of(self, parameters: Sequence[torch.Tensor]) -> list[_Flat]:
        import torch

        job, flats = self.job, []
        ordered = sorted(
            parameters, key=lambda each: str(each.dtype)
        )  # stable: the model's order within a dtype
        for dtype, group in groupby(ordered, key=lambda each: each.dtype):
            members: list[torch.Tensor] = list(group)
            sizes = [each.numel() for each in members]
            buffer = torch.zeros(sum(sizes), dtype=dtype, device=job.device)
            parts = zip(torch.split(buffer, sizes), members, strict=True)
            views = [part.view(each.shape) for part, each in parts]
            gathered = [torch.zeros_like(buffer) for _ in range(job.world_size)] if job.rank == 0 else None
            flats.append(_Flat(members, buffer, views, gathered))
        return flats

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        job = self.job
        with job.recorder.span("forward"):
            loss = job.loss(job.model(inputs), targets)
        with job.recorder.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with job.recorder.span("synchronize"):
            for number, flat in enumerate(self._flats):
                self._aggregate(number, flat)
        return loss.detach()

    def own_step(self, batch: Any) -> torch.Tensor:
        if self._own is None:
            from ddpbench.strategies.own_step import OwnStep, network_of

            optimizers: Any = self.optimizer
            self._own = OwnStep(
                self.job, network_of(self.job), optimizers, after_backward=self._aggregate_reached
            )
            for number, each in enumerate(self._trained):
                note = partial(_note, self._reached, number)
                self._hooks.append(each.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
        self._sent = 0
        return self._own(batch)

    def _aggregate_reached(self) -> None:
        """Average the gradients that the last backward changed, which must be the same on all ranks."""
        reached = frozenset(self._reached)
        self._reached.clear()
        if reached not in self._buffers:
            self._buffers[reached] = self._flats_of([self._trained[number] for number in sorted(reached)])
        for flat in self._buffers[reached]:
            self._aggregate(self._sent, flat)
            self._sent += 1

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._flats, self._buffers, self._hooks = [], {}, []

    def _aggregate(self, number: int, flat: _Flat) -> None:
        import torch
        import torch.distributed as dist

        recorder = self.job.recorder
        size = flat.buffer.numel() * flat.buffer.element_size()
        for parameter in flat.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in flat.parameters if parameter.grad is not None]
        torch._foreach_copy_(flat.views, gradients)

        start = recorder.mark()
        gathered = None if flat.gathered is None else [as_real(each) for each in flat.gathered]
        dist.gather(as_real(flat.buffer), gathered, dst=0)
        recorder.add_transfer(
            bucket=2 * number, op="gather", size=size, start=start, end=recorder.mark(), root=0
        )

        copies: list[torch.Tensor] | None = None
        if flat.gathered is not None:
            mean, *others = flat.gathered
            for other in others:  # in rank order, so that runs repeat bit for bit
                mean.add_(other)
            mean.div_(self.job.world_size)
            copies = [as_real(mean)] * self.job.world_size

        # Gather and scatter are direct transfers, so the master's link is the bottleneck that this strategy shows.
        # gloo's broadcast is a binomial tree, in which other ranks pass the gradient on, and gloo's reduce is a ring.
        start = recorder.mark()
        dist.scatter(as_real(flat.buffer), copies, src=0)
        recorder.add_transfer(
            bucket=2 * number + 1, op="scatter", size=size, start=start, end=recorder.mark(), root=0
        )
        torch._foreach_copy_(gradients, flat.views)
