"""Modules that hold the model of a user's plain class and compute its loss."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from ddpbench.text_safety import with_article
from ddpbench.workloads.plain_methods import method_of
from ddpbench.workloads.plain_state import copy_of


class _Held:
    """Holds a user's object, so that copying the model copies it too."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.loss = method_of(own, "loss")

    def __deepcopy__(self, memo: dict[int, Any]) -> _Held:
        return _Held(copy_of(self.own, memo))


class OwnModel(nn.Module):
    """A module that holds a user's model in `network`."""

    alive: ClassVar[weakref.WeakSet[OwnModel]] = weakref.WeakSet()
    """All instances that exist in this process, including copies."""

    network: nn.Module
    own: Any
    """The user's object that belongs to this model only."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        _check_bare(network)
        self.network = network
        self.alive.add(self)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.alive.add(self)


class ModelWithStep(OwnModel):
    """A user's model, and the object whose `step` trains it.

    A model that is a dict of modules is stored as a ModuleDict.
    """

    def __init__(self, network: nn.Module | Mapping[str, nn.Module], own: Any) -> None:
        parts = network.values() if isinstance(network, Mapping | nn.ModuleDict) else ()
        for part in parts:
            _check_bare(part)
        super().__init__(nn.ModuleDict(network) if isinstance(network, Mapping) else network)
        self.own = own
        self.step = method_of(own, "step")
        """The user's `step(network, batch, optimizer)`."""
        self.loss = method_of(own, "loss") if callable(getattr(own, "loss", None)) else None
        """The user's `loss(network, batch)`, for evaluation; None if the class has only `step`."""
        wanted = inspect.signature(self.step).parameters.values()
        if len(wanted) < 3 and not any(each.kind is each.VAR_POSITIONAL for each in wanted):
            raise TypeError(
                "step takes the model, a batch and what optimizer() returned: step(self, model, batch, optimizer)"
            )

    def forward(self, batch: Any) -> torch.Tensor:
        assert self.loss is not None
        return scalar(self.loss(self.network, batch)).reshape(1)

    def __deepcopy__(self, _memo: Any) -> ModelWithStep:
        raise TypeError(
            "a model whose class has step() cannot be copied, because its object may hold anything: create "
            "another model instead"
        )


class ModelWithLoss(OwnModel):
    """A user's model with the user's loss. Maps a batch to its loss.

    The loss has the shape [1], so that replicas' losses can be gathered.
    """

    def __init__(self, network: nn.Module, own: Any) -> None:
        """Store the user's model and a copy of `own`, which is the user's object before training."""
        super().__init__(network)
        parts = (*network.modules(), *network.parameters(), *network.buffers())
        self._held = _Held(copy_of(own, {id(part): part for part in parts}))

    @property
    def own(self) -> Any:
        """Return the user's object that belongs to this model only."""
        return self._held.own

    def forward(self, batch: Any) -> torch.Tensor:
        return scalar(self._held.loss(self.network, batch)).reshape(1)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> ModelWithLoss:
        """Cast or move this model, and other models in the user's object, such as an average."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        within = {id(module) for module in self.network.modules()}
        for kept in getattr(self.own, "__dict__", {}).values():
            if isinstance(kept, nn.Module) and id(kept) not in within:
                kept._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def scalar(returned: Any) -> torch.Tensor:
    """Return the loss tensor in the result of a user's `loss`: the result itself, or its item or attribute `loss`.

    Raises:
        TypeError: the loss is not a tensor with one element.
    """
    inner = returned.get("loss") if isinstance(returned, Mapping) else getattr(returned, "loss", returned)
    loss = returned if inner is None else inner
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            f"loss(model, batch) returned {what(loss)}; it must return a scalar: the mean over the batch's samples"
        )
    return loss


def holder_of(parameters: Iterable[torch.Tensor]) -> OwnModel:
    """Return the `OwnModel` to which the first of these parameters belongs.

    Raises:
        LookupError: no model has the parameter.
    """
    first = next(iter(parameters))
    for model in OwnModel.alive:
        if any(parameter is first for parameter in model.parameters()):
            return model
    raise LookupError("no model has these parameters")


_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


def _check_bare(network: Any) -> None:
    """Refuse what is not a module, or already wrapped for parallel training.

    Raises:
        TypeError: the network is refused.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"model() returned {what(network)}; it must return a torch.nn.Module (or, with step(), a dict of some)"
        )
    for each in type(network).__mro__:
        if each.__name__ in _WRAPPERS and each.__module__.startswith("torch."):
            raise TypeError(
                f"model() returned {with_article(each.__name__)}: return the bare module, which the strategy wraps"
            )


def what(value: Any) -> str:
    """Describe a value of a wrong type in words: "None", "a str", or "a tensor of shape ..."."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return "None" if value is None else with_article(type(value).__name__)
