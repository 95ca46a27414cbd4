"""The precision of forward and loss, which is the same for every strategy: the model's own types, or autocast.

Autocast applies to one thread, and data_parallel runs replicas in separate threads, so the model is wrapped. Under fp16
the loss is scaled (torch.amp.GradScaler), and an update with an infinite gradient is skipped. All ranks skip the same
updates: the average of one infinite gradient is infinite, and torch shares the fact for sharded gradients (DTensor).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddpbench.strategies import Replica

LossFunction = Callable[[Any, Any], torch.Tensor]


class PrecisionPolicy:
    """Full precision, in which model and data keep their types. Base class of the other precisions."""

    name = "full"
    unit_roundoff = 0.0
    """Unit roundoff of the type in which forward computes, or 0 if that is the parameters' own type."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return a model whose forward runs `model` in this precision."""
        return model

    def value(self, loss: LossFunction) -> LossFunction:
        """Return a function that computes `loss` in this precision."""
        return loss

    def loss(self, loss: LossFunction) -> LossFunction:
        """Return a function that computes the loss from which backward starts. Under fp16 its result is scaled."""
        return self.value(loss)

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the unscaled loss of the last step, on its device. `loss` is the value from which backward started."""
        return loss

    def true_loss(self, loss: torch.Tensor) -> float:
        """Return the unscaled loss of the last step as a number. `loss` is the value from which backward started."""
        return float(self.unscaled(loss))

    def update(self, replica: Replica) -> None:
        """Update the replica's parameters from a step's gradients."""
        replica.apply()

    def true_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a copy of a gradient, divided by the loss's scale."""
        return gradient.clone()

    def lower_scale(self) -> bool:
        """Halve the loss's scale. Return False if this precision does not scale the loss."""
        return False


class Autocast(PrecisionPolicy):
    """Precision that runs forward and loss under torch.autocast."""

    def __init__(self, name: str, device_type: str, dtype: torch.dtype) -> None:
        self.name, self._device_type, self._dtype = name, device_type, dtype
        self.unit_roundoff = torch.finfo(dtype).eps / 2

    def wrap(self, model: nn.Module) -> nn.Module:
        return _Autocasting(model, self._device_type, self._dtype)

    def value(self, loss: LossFunction) -> LossFunction:
        def under_autocast(outputs: Any, targets: Any) -> torch.Tensor:
            with torch.autocast(self._device_type, self._dtype):
                return loss(outputs, targets)

        return under_autocast


class ScaledAutocast(Autocast):
    """Autocast to fp16, with the loss scaled so that the smallest gradients don't become 0."""

    def __init__(self, name: str, device_type: str, dtype: torch.dtype) -> None:
        super().__init__(name, device_type, dtype)
        self._scaler = torch.amp.GradScaler(device_type)
        self._loss: torch.Tensor | None = None

    def loss(self, loss: LossFunction) -> LossFunction:
        inner = self.value(loss)

        def scaled(outputs: Any, targets: Any) -> torch.Tensor:
            value = inner(outputs, targets)
            self._loss = value.detach()
            return self._scaler.scale(value)

        return scaled

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self._loss is None else self._loss

    def update(self, replica: Replica) -> None:
        applied: Any = _Update(replica)
        self._scaler.unscale_(applied)
        self._scaler.step(applied)
        self._scaler.update()
        if not applied.taken:
            replica.optimizer.zero_grad(set_to_none=True)

    def true_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self._scaler.get_scale()

    def lower_scale(self) -> bool:
        self._scaler.update(self._scaler.get_scale() / 2)
        return True


FULL = PrecisionPolicy()
_NARROW = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Map from the types in which autocast computes to their names in a case."""


@contextmanager
def entered_autocasts() -> Iterator[list[torch.dtype]]:
    """Yield a list that collects, in order, the types of all autocasts that the enclosed code enters."""
    seen: list[torch.dtype] = []
    enter = torch.autocast.__enter__

    def noting(self: Any) -> Any:
        if self._enabled:
            seen.append(self.fast_dtype)
        return enter(self)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = noting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def widest(types: Iterable[torch.dtype]) -> str:
    """Return the name (`bf16` or `fp16`) of the autocast type with the largest roundoff, or an empty text."""
    known = [each for each in types if each in _NARROW]
    return _NARROW[max(known, key=lambda each: torch.finfo(each).eps)] if known else ""


def roundoff_of(name: str) -> float:
    """Return the unit roundoff of the autocast `name` (`bf16` or `fp16`), or 0 for other names."""
    return next((torch.finfo(each).eps / 2 for each, own in _NARROW.items() if own == name), 0.0)


def precision_of(name: str, device: torch.device) -> PrecisionPolicy:
    """Return the precision of this name. Each call for fp16 returns a new object, with its own loss scale."""
    if name == "bf16":
        return Autocast(name, device.type, torch.bfloat16)
    if name == "fp16":
        return ScaledAutocast(name, device.type, torch.float16)
    return FULL


class _Autocasting(nn.Module):
    """A model whose forward enters autocast itself, in any thread that calls it."""

    def __init__(self, model: nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self._device_type, self._dtype = device_type, dtype

    @property
    def without_autocast(self) -> nn.Module:
        return self.model

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast(self._device_type, self._dtype):
            return self.model(*inputs)


class _Update:
    """A replica's update as an optimizer for GradScaler, which unscales gradients and may skip the step."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.taken = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._replica.optimizer.param_groups

    def step(self) -> None:
        self._replica.apply()
        self.taken = True
