"""The precision of forward and loss, the same for every strategy: the model's own types, or autocast.

Autocast applies to one thread, and data_parallel runs replicas in separate threads, so the model is wrapped rather than
the step. Under fp16 the loss is scaled before backward and gradients are unscaled before the update, which is skipped
if a gradient is infinite (torch.amp.GradScaler). Ranks decide that alike as long as each holds all averaged gradients,
since an infinite gradient makes every average that includes it infinite. For shards (DTensor), torch tells every rank
what any rank has found.
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
    """Full precision: the types of model and data."""

    name = "full"
    unit_roundoff = 0.0
    """The unit roundoff of the type in which forward computes, if it is not the parameters' own; else 0."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model with its forward in this precision."""
        return model

    def value(self, loss: LossFunction) -> LossFunction:
        """Return a function that computes `loss` in this precision."""
        return loss

    def loss(self, loss: LossFunction) -> LossFunction:
        """Return a function whose result backward starts from: `loss` in this precision, scaled under fp16."""
        return self.value(loss)

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the workload's unscaled loss of the last step, on its device."""
        return loss

    def true_loss(self, loss: torch.Tensor) -> float:
        """Return the unscaled loss of the last step as a number."""
        return float(self.unscaled(loss))

    def update(self, replica: Replica) -> None:
        """Update the parameters from a step's gradients."""
        replica.apply()

    def true_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a copy of a gradient, with the loss's scale divided out."""
        return gradient.clone()

    def lower_scale(self) -> bool:
        """Halve the loss's scale; return False if the loss has none."""
        return False


class Autocast(PrecisionPolicy):
    """Forward and loss under torch.autocast."""

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
    """Autocast to fp16 with a scaled loss, so that the smallest gradients don't vanish."""

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
"""The types in which autocast computes, with their names in a case."""


@contextmanager
def entered_autocasts() -> Iterator[list[torch.dtype]]:
    """Yield a list to which the types of all autocasts entered meanwhile are added, in order."""
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
    """Return the name of the coarsest autocast type among these types; empty if there is none."""
    known = [each for each in types if each in _NARROW]
    return _NARROW[max(known, key=lambda each: torch.finfo(each).eps)] if known else ""


def roundoff_of(name: str) -> float:
    """Return the unit roundoff of the autocast of this name; 0 if there is none."""
    return next((torch.finfo(each).eps / 2 for each, own in _NARROW.items() if own == name), 0.0)


def precision_of(name: str, device: torch.device) -> PrecisionPolicy:
    """Return the precision of this name; each one for fp16 has its own scaler."""
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
        """Return the wrapped model, for a strategy that enters autocast in a framework's own way."""
        return self.model

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast(self._device_type, self._dtype):
            return self.model(*inputs)


class _Update:
    """A replica's update in the form of an optimizer: the scaler unscales its gradients and may skip its step."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.taken = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._replica.optimizer.param_groups

    def step(self) -> None:
        self._replica.apply()
        self.taken = True
