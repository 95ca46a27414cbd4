"""The model of `replay`, with gradients that become ready at the profile's times.

Backward walks a chain of autograd nodes in the profile's order. Each node fills one to three gradients, waits until
they are due, and returns them to the reducer. The gradient of parameter i is a factor w_i times the mean of the batch's
vectors, repeated to the parameter's size. It is linear in the data, so the average over shards equals the full batch's
gradient.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.utils.data import Dataset

from ddpbench.measure.pacer import Pass
from ddpbench.workloads.rhythm import Rhythm

WIDTH = 256
"""Length of a sample's vector, and the period with which a gradient's values repeat."""
TABLE_SAMPLES = 1024
LEARNING_RATE = 1e-3


class RandomSamples(Dataset[Any]):
    """A dataset of `size` vectors of `WIDTH` random numbers, from a table that is reused; targets are the indices."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._table = torch.rand(TABLE_SAMPLES, WIDTH, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return self._size

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a full batch at once: inputs [samples, WIDTH] and targets [samples]."""
        chosen = torch.tensor(indices)
        return self._table[chosen % TABLE_SAMPLES], chosen

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]


class ReplayModel(nn.Module):
    """A model that maps batches [samples, WIDTH] to zeros [samples], and takes the profile's time for that."""

    def __init__(self, rhythm: Rhythm) -> None:
        super().__init__()
        self.rhythm = rhythm
        profile = rhythm.profile
        self.names = tuple(parameter.name for parameter in profile.parameters)
        """Names of the parameters in the profile; as attributes, parameters have other names."""
        self.sizes = [rhythm.elements(number) for number in range(len(self.names))]
        self.order = profile.order
        for number, parameter in enumerate(profile.parameters):
            shape = parameter.shape if rhythm.case.shrink == 1 else (self.sizes[number],)
            value = nn.Parameter(_tiled(torch.rand(WIDTH) - 0.5, self.sizes[number]).view(shape))
            self.register_parameter(f"p{number}", value)
        self._gradients: list[_Gradient | None] = [None] * len(self.names)
        self._chains = _Chains()
        self._replicas = 0
        self._replica: int | None = None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time = self.rhythm.begin(self._replica)
        outputs = batch.new_zeros(len(batch))
        if torch.is_grad_enabled():
            parameters = list(self.parameters())
            chain = self._chains.take(parameters) if self._replica is None else None
            chain = chain or _Chain(parameters, self.rhythm.together())
            chain.model, chain.time, chain.batch = self, time, batch
            outputs = _Start.apply(chain.end, outputs, chain)  # type: ignore[no-untyped-call]
        time.end(self.rhythm.forward_ns, _wake_early)
        return outputs

    def gradient(self, number: int, parameter: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """Return a parameter's gradient: `row` times the parameter's factor, repeated to the parameter's size.

        The memory is reused in each step, without a copy. If gradients accumulate, or other replicas may fill the same
        memory, new memory is used.
        """
        if parameter.grad is not None or self._replica is not None:
            return _Gradient(number, parameter, row).filled(row)
        kept = self._gradients[number]
        if kept is None or kept.memory.dtype != row.dtype:
            kept = self._gradients[number] = _Gradient(number, parameter, row)
        return kept.filled(row)

    def end_pass(self, chain: _Chain) -> None:
        """End a backward pass when it is due, and store the chain for the next pass over the same parameters."""
        chain.time.end(self.rhythm.end_ns, _wake_early)
        chain.model = None
        if self._replica is None:
            self._chains.give(chain)

    def _replicate_for_data_parallel(self) -> ReplayModel:
        """Number a replica by its device; torch makes replicas in the order of devices."""
        replica: ReplayModel = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._replica = self._replicas % self.rhythm.case.world_size
        self._replicas += 1
        return replica


def _wake_early() -> None:
    """Run a little of the interpreter and torch, to have it in CPU caches when needed."""
    (_STIRRED * 1).mean()


_STIRRED = torch.zeros(8, requires_grad=True)


def _tiled(row: torch.Tensor, size: int) -> torch.Tensor:
    return row.repeat(-(-size // len(row)))[:size].clone()


class _Gradient:
    """The memory of one parameter's gradient, which a single operation fills."""

    __slots__ = ("memory", "seen", "weights")

    def __init__(self, number: int, parameter: torch.Tensor, row: torch.Tensor) -> None:
        size = parameter.numel()
        rows = -(-size // WIDTH)
        self.memory = torch.empty(rows, WIDTH, dtype=row.dtype)
        self.seen = self.memory.view(-1)[:size].view(parameter.shape)
        # A factor between 0 and 1, so that gradients of different parameters differ.
        self.weights = torch.full((1, 1), (number * 7919 % 97 + 1) / 97, dtype=row.dtype).expand(rows, 1)

    def filled(self, row: torch.Tensor) -> torch.Tensor:
        torch.mul(self.weights, row, out=self.memory)
        return self.seen.detach()


class _Chain:
    """The autograd nodes of one backward pass.

    One node returns all gradients that become ready together, because each takes the CPU some 20 µs.
    """

    def __init__(self, parameters: list[nn.Parameter], groups: Sequence[Sequence[int]]) -> None:
        self.parameters = parameters
        self.model: ReplayModel | None = None
        """Model whose pass uses the chain; None between passes, so that neither keeps the other alive."""
        self.time: Pass
        self.batch: torch.Tensor
        self.row: torch.Tensor
        # The chain refers to the nodes. If they referred to the chain, no garbage collector would see the cycle.
        own = weakref.ref(self)
        node: Any = _End.apply(torch.zeros(1, requires_grad=True), own)  # type: ignore[no-untyped-call]
        for numbers in reversed(groups):
            chosen = [parameters[number] for number in numbers]
            node = _Ready.apply(node, own, numbers, *chosen)  # type: ignore[no-untyped-call]
        self.end: torch.Tensor = node

    @property
    def owner(self) -> ReplayModel:
        assert self.model is not None
        return self.model

    def start(self, slope: torch.Tensor) -> None:
        """Begin backward; `slope` is the loss's derivative by each sample's output, [samples]."""
        if self.owner._replica is not None:  # the master has waited for the slowest replica's outputs
            self.time.resume(self.owner.rhythm.forward_ns)
        self.row = slope @ self.batch

    def gradients(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Return the gradients of these parameters, after waiting until the first is due."""
        model, row = self.owner, self.row
        rhythm = model.rhythm
        found = [model.gradient(number, self.parameters[number], row) for number in numbers]
        self.time.until(rhythm.ready_ns[numbers[0]], rhythm.grain_ns)
        return found


class _Chains:
    def __init__(self) -> None:
        self._free: list[_Chain] = []

    def take(self, parameters: list[nn.Parameter]) -> _Chain | None:
        while self._free:
            chain = self._free.pop()
            if all(map(operator.is_, chain.parameters, parameters)):
                return chain
        return None

    def give(self, chain: _Chain) -> None:
        self._free.append(chain)

    def __deepcopy__(self, memo: Any) -> _Chains:
        return _Chains()  # the copy has different parameters

    def __reduce__(self) -> tuple[Any, ...]:
        return _Chains, ()


class _Start(Function):
    """The node that is last in forward and first in backward, which starts the chain."""

    @staticmethod
    def forward(ctx: Any, node: torch.Tensor, outputs: torch.Tensor, chain: _Chain) -> torch.Tensor:
        ctx.chain = chain
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        ctx.chain.start(slope)
        return slope.new_zeros(1), None, None


class _Ready(Function):
    """A node that returns up to three parameters' gradients, in an order that autograd keeps."""

    @staticmethod
    def forward(
        ctx: Any,
        node: torch.Tensor,
        chain: weakref.ref[_Chain],
        numbers: Sequence[int],
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.chain, ctx.numbers = chain, numbers
        return node.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        return slope, None, None, *ctx.chain().gradients(ctx.numbers)


class _End(Function):
    """The node that is first in forward and last in backward; `anchor` makes autograd include it."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, chain: weakref.ref[_Chain]) -> torch.Tensor:
        ctx.chain = chain
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        chain = ctx.chain()
        chain.owner.end_pass(chain)
        return None, None


class PacedSGD(torch.optim.SGD):
    """SGD that takes as long as the profile's update; it has no momentum, to save memory."""

    def __init__(self, parameters: Any, rhythm: Rhythm) -> None:
        super().__init__(parameters, lr=LEARNING_RATE)
        self._rhythm = rhythm

    def step(self, closure: Any = None) -> Any:
        """Make one update and return None; a closure, if given, is called first to compute the gradients."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        rhythm = self._rhythm
        pacer, update = rhythm.pacer, rhythm.update()
        start_ns = pacer.now()
        with (
            torch.no_grad()
        ):  # one call for all parameters: SGD's own step takes the host three times as long
            for group in self.param_groups:
                used = [parameter for parameter in group["params"] if parameter.grad is not None]
                if used:
                    torch._foreach_add_(used, [p.grad for p in used], alpha=-group["lr"])
        self.zero_grad(set_to_none=True)  # part of the profiled update, since every replica does this next
        own_ns = pacer.now() - start_ns
        update.end(rhythm.optimizer_ns, self.zero_grad)
        pacer.updated(own_ns)
        return None

    step.hooked = True  # type: ignore[attr-defined]  # otherwise torch wraps it, outside the time measured here
