"""The model behind `replay`: parameters whose gradients come when the profile says. Imports torch at once.

Forward builds a chain of nodes, one a parameter, that backward walks in the order in which gradients became
ready: each fills its gradient, waits for its moment and hands it on, so that the reducer sees real gradients in
the real order. Parameter i's gradient is w_i times the mean of the batch's vectors, repeated to its size: linear
in the data, so that averages over shards are the whole batch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.utils.data import Dataset

from ddpbench.measure.pacer import Pass
from ddpbench.workloads.replay import Rhythm

WIDTH = 256
"""Numbers of a sample, and the period with which a gradient repeats."""
TABLE_SAMPLES = 1024
LEARNING_RATE = 1e-3


class Numbers(Dataset[Any]):
    """`size` samples of `WIDTH` random numbers, out of a table that they share, with a target of no meaning."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._table = torch.rand(TABLE_SAMPLES, WIDTH, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return self._size

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of these samples at once: to collate them one by one would cost the host more than their use."""
        chosen = torch.tensor(indices)
        return self._table[chosen % TABLE_SAMPLES], chosen

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]


class ReplayModel(nn.Module):
    """Batches [samples, WIDTH] to zeros [samples], in the profile's time."""

    def __init__(self, rhythm: Rhythm) -> None:
        super().__init__()
        self.rhythm = rhythm
        profile = rhythm.profile
        self.names = tuple(parameter.name for parameter in profile.parameters)
        """The parameters' own, which are no names of attributes here."""
        self.sizes = [rhythm.elements(number) for number in range(len(self.names))]
        self.order = profile.order
        for number, parameter in enumerate(profile.parameters):
            shape = parameter.shape if rhythm.case.shrink == 1 else (self.sizes[number],)
            value = nn.Parameter(_tiled(torch.rand(WIDTH) - 0.5, self.sizes[number]).view(shape))
            self.register_parameter(f"p{number}", value)
        self._tensors: list[torch.Tensor | None] = [None] * len(self.names)
        self._anchor = torch.zeros(1, requires_grad=True)
        self._replicas = 0
        self._replica: int | None = None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        work = _Work(self, batch)
        node: Any = _End.apply(batch.new_zeros(len(batch)), self._anchor, work)  # type: ignore[no-untyped-call]
        for number in reversed(self.order):
            node = _Gradient.apply(node, work.parameters[number], work, number)  # type: ignore[no-untyped-call]
        outputs: torch.Tensor = _Start.apply(node, work)  # type: ignore[no-untyped-call]
        work.time.end(self.rhythm.forward_ns, _stir)
        return outputs

    def gradient(self, number: int, parameter: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """A parameter's gradient: `row` times its weight, over and over.

        It is a memory of the model's that autograd takes without a copy, unless it would be added to itself
        (gradients that add up) or another replica may be filling it.
        """
        size = self.sizes[number]
        kept = self._tensors[number]
        mine = parameter.grad is None and self._replica is None
        if not mine or kept is None or kept.dtype != row.dtype:
            kept = torch.empty(-(-size // WIDTH), WIDTH, dtype=row.dtype)
            if mine:
                self._tensors[number] = kept
        kept.copy_(row * _weight(number))
        return kept.detach().view(-1)[:size].view(parameter.shape)

    def _replicate_for_data_parallel(self) -> ReplayModel:
        """A replica for one step; those of a step are asked for in the order of their devices."""
        replica: ReplayModel = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._replica = self._replicas % self.rhythm.case.world_size
        self._replicas += 1
        return replica


def _stir() -> None:
    """Has the interpreter and torch do a little, so that what comes next finds them in the caches."""
    (_STIRRED * 1).mean()


_STIRRED = torch.zeros(8, requires_grad=True)


def _weight(number: int) -> float:
    """A parameter's own, between 0 and 1, so that one gradient is not taken for another's."""
    return (number * 7919 % 97 + 1) / 97


def _tiled(row: torch.Tensor, size: int) -> torch.Tensor:
    return row.repeat(-(-size // len(row)))[:size].clone()


class _Work:
    """One pass over a batch, forward and backward."""

    __slots__ = ("_model", "_row", "batch", "parameters", "time")

    def __init__(self, model: ReplayModel, batch: torch.Tensor) -> None:
        self.time: Pass = model.rhythm.begin(model._replica)
        self._model, self.batch = model, batch
        self.parameters = list(model.parameters())
        self._row = batch

    def start(self, slope: torch.Tensor) -> None:
        """Backward begins, with the loss's slope at each sample's output."""
        if self._model._replica is not None:  # its master waited for the outputs of the slowest replica
            self.time.resume(self._model.rhythm.forward_ns)
        self._row = slope @ self.batch

    def gradient(self, number: int) -> torch.Tensor:
        """A parameter's gradient, at its moment."""
        rhythm = self._model.rhythm
        found = self._model.gradient(number, self.parameters[number], self._row)
        self.time.until(rhythm.ready_ns[number], rhythm.grain_ns)
        return found

    def end(self) -> None:
        """Backward ends."""
        self.time.end(self._model.rhythm.end_ns, _stir)


class _Start(Function):
    """The last node of forward, the first of backward."""

    @staticmethod
    def forward(ctx: Any, node: torch.Tensor, work: _Work) -> torch.Tensor:
        ctx.work = work
        return node.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        ctx.work.start(slope)
        return slope, None


class _Gradient(Function):
    """The node that gives one parameter its gradient."""

    @staticmethod
    def forward(
        ctx: Any, node: torch.Tensor, parameter: torch.Tensor, work: _Work, number: int
    ) -> torch.Tensor:
        ctx.work, ctx.number = work, number
        return node.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        return slope, ctx.work.gradient(ctx.number), None, None


class _End(Function):
    """The first node of forward, the last of backward; `anchor` is there to have it walked at all."""

    @staticmethod
    def forward(ctx: Any, node: torch.Tensor, anchor: torch.Tensor, work: _Work) -> torch.Tensor:
        ctx.work = work
        return node.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        ctx.work.end()
        return None, None, None


class PacedSGD(torch.optim.SGD):
    """Plain SGD, without a momentum that would cost memory, in the time of the profile's update."""

    def __init__(self, parameters: Any, rhythm: Rhythm) -> None:
        super().__init__(parameters, lr=LEARNING_RATE)
        self._rhythm = rhythm

    def step(self, closure: Any = None) -> Any:
        """One update."""
        rhythm = self._rhythm
        pacer, update = rhythm.pacer, rhythm.update()
        start_ns = pacer.now()
        super().step(closure)
        self.zero_grad(set_to_none=True)  # what every replica does next, and so a part of the profiled update
        own_ns = pacer.now() - start_ns
        update.end(rhythm.optimizer_ns, self.zero_grad)
        pacer.end_step(own_ns)
        return None

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it, outside of what is timed here
