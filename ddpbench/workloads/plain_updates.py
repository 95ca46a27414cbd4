"""Make the optimizer of a user's plain class, with hooks for the class's actions around each update."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ddpbench.workloads.plain_methods import method_of
from ddpbench.workloads.plain_model import ModelWithStep, holder_of, what


def noting_optimizer(
    own: Any, parameters: list[torch.Tensor], default: Callable[..., torch.optim.Optimizer], options: Any
) -> torch.optim.Optimizer:
    """Return an optimizer for these parameters, made by the user's object that belongs to their model.

    If no model has them, the object is `own`. `default` replaces a missing `optimizer`. `before_update` and a scheduler
    become hooks of the optimizer's step, so that they run under every strategy and in proofs.

    Raises:
        TypeError: the object returned neither an optimizer nor a pair of an optimizer and a scheduler.
    """
    made: Any
    with suppress(LookupError):
        own = holder_of(parameters).own
    if callable(getattr(own, "optimizer", None)):
        make = method_of(own, "optimizer")
        made = make(holder_of(parameters).network if _takes_model(make) else parameters)
    else:
        made = default(parameters, options)
    optimizer, scheduler = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(optimizer, torch.optim.Optimizer) or not (
        scheduler is None or callable(getattr(scheduler, "step", None))
    ):
        raise TypeError(
            f"optimizer() returned {_named(made)}; it must return an optimizer of torch.optim, or a pair of one and "
            "its scheduler"
        )
    with_hooks(optimizer)
    if scheduler is not None and _wants_value(scheduler):
        raise TypeError(
            f"optimizer() returned the scheduler {type(scheduler).__name__}, whose step() needs a value such as the "
            "loss: write step(self, model, batch, optimizers) in place of loss(), and call scheduler.step(value) there"
        )
    if isinstance(scheduler, torch.optim.Optimizer):
        raise TypeError(
            "optimizer() returned two optimizers: write step(self, model, batch, optimizers), which decides when "
            "each of them updates"
        )
    if callable(getattr(own, "before_update", None)):
        before, network = method_of(own, "before_update"), holder_of(parameters).network

        def before_step(*_: Any) -> None:
            before(network)  # its value, such as a norm, is not returned: torch would take it for arguments

        optimizer.register_step_pre_hook(before_step)
    if scheduler is not None:
        optimizer.register_step_post_hook(_stepping(scheduler))
    return optimizer


def with_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Add the attributes that step hooks need to an optimizer whose class does not call torch's constructor."""
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        optimizer.__dict__.setdefault("defaults", {})
        torch.optim.Optimizer.__setstate__(
            optimizer, {}
        )  # as torch does for an optimizer that was pickled before hooks existed


def _wants_value(scheduler: Any) -> bool:
    """Return whether a scheduler's `step` requires an argument, as in ReduceLROnPlateau."""
    try:
        wanted = inspect.signature(scheduler.step).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in kinds and each.default is each.empty for each in wanted)


def _stepping(scheduler: Any) -> Callable[..., None]:
    """Return a hook that steps a scheduler. A benchmark may continue after a scheduler such as OneCycleLR has ended."""
    ended = False

    def step(*_: Any) -> None:
        nonlocal ended
        if ended:
            return
        try:
            scheduler.step()
        except ValueError as error:
            if "Tried to step" not in str(error):
                raise
            ended = True

    return step


def own_optimizers(
    parameters: list[torch.Tensor], default: Callable[..., torch.optim.Optimizer], options: Any
) -> Any:
    """Call the user's `optimizer` for the model with these parameters; return the result, an argument of `step`.

    `default` makes an optimizer if the user's object has no `optimizer`.
    """
    holder = holder_of(parameters)
    assert isinstance(holder, ModelWithStep)
    if not callable(getattr(holder.own, "optimizer", None)):
        return default(parameters, options)
    make = method_of(holder.own, "optimizer")
    if _takes_parameters(make):
        return make(parameters)
    try:
        return make(holder.network)
    except TypeError as error:
        if _takes_model(make):
            raise
        first = next(iter(inspect.signature(make).parameters), "")
        raise TypeError(
            f"{error}; in a class with step(), optimizer() is given the model as {first!r}. To get the "
            "parameters, write optimizer(self, parameters)"
        ) from error


def _takes_model(make: Callable[..., Any]) -> bool:
    """Return whether the first parameter's name suggests the model."""
    first = next(iter(inspect.signature(make).parameters), "")
    return any(word in first for word in ("model", "net", "module"))


def _takes_parameters(make: Callable[..., Any]) -> bool:
    """Return whether the first parameter's name suggests the model's parameters."""
    return "param" in next(iter(inspect.signature(make).parameters), "")


def _named(made: Any) -> str:
    if isinstance(made, tuple | list):
        return f"{type(made).__name__} of {', '.join(type(each).__name__ for each in made)}"
    return what(made)
