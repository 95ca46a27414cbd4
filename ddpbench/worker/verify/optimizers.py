"""Whether an optimizer trains the model that it was made for: all of its trained parameters, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

UPDATES = 3
"""A schedule may begin with a learning rate of zero."""


def not_its_own(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Return in what the optimizers' parameters together are not the model's trained ones; empty where they are."""
    given = [each for one in optimizers for group in one.param_groups for each in group["params"]]
    held = {id(each) for each in given}
    names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    frozen = {id(each) for each in model.parameters() if not each.requires_grad}
    strange = [each for each in given if id(each) not in names and id(each) not in frozen]
    left_out = [name for key, name in names.items() if key not in held]
    if strange and len(left_out) == len(names):
        return (
            "its optimizer is over the parameters of another model than the one that trains: make it of the "
            "parameters that it is given, or of the model in optimizer(self, model)"
        )
    if strange:
        return (
            f"its optimizer has {_many(len(strange), 'parameter')} that the model has not: what is to be trained "
            "belongs into the model, or no strategy aggregates its gradients"
        )
    if left_out:
        return (
            f"its optimizer leaves out {len(left_out)} of the model's {_many(len(names), 'trained parameter')} "
            f"({in_words(left_out)}): give it all, or set requires_grad = False for those that are not to be trained"
        )
    return ""


def not_moved(model: nn.Module, update: Callable[[], object]) -> str:
    """Return which parameters with a gradient some updates from it leave as they were; empty where there are none.

    Of types narrower than float32 nothing is said: what an update changes may be less than they can hold.
    """
    trained = {
        name: (each, each.detach().clone())
        for name, each in model.named_parameters()
        if each.requires_grad and _has_gradient(each)
    }
    still = list(trained)
    for _ in range(UPDATES):
        update()
        still = [name for name in still if torch.equal(*trained[name])]
        if not still:
            return ""
    return _left_still(still, len(trained))


def not_moved_by_steps(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: Callable[[], object]
) -> str:
    """Return the same of whole steps that call these optimizers themselves.

    A parameter counts if it has a gradient when an optimizer of its own steps. Some may have their turn later.
    """
    names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    before = {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}
    reached: set[str] = set()

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            reached.update(
                names[id(each)] for each in group["params"] if id(each) in names and _has_gradient(each)
            )

    hooks = [one.register_step_pre_hook(look) for one in optimizers]
    still: list[str] = []
    for _ in range(UPDATES):
        step()
        after = dict(model.named_parameters())
        still = [
            name for name in names.values() if name in reached and torch.equal(before[name], after[name])
        ]
        if reached and not still:
            break
    for hook in hooks:
        hook.remove()
    if not reached:
        return f"{_many(UPDATES, 'step')} called no optimizer with a gradient to apply: the model would not train"
    return _left_still(still, len(reached)) if still else ""


def _has_gradient(parameter: torch.Tensor) -> bool:
    """Return whether it has a gradient that is not 0, and is of a type that an update cannot be too small for."""
    wide = parameter.dtype in (torch.float32, torch.float64)
    return wide and parameter.grad is not None and bool(parameter.grad.any())


def _left_still(still: Sequence[str], of: int) -> str:
    return (
        f"{_many(UPDATES, 'update')} of its optimizer did not change {len(still)} of the model's "
        f"{_many(of, 'parameter')} that have a gradient ({in_words(still)}): is their learning rate 0?"
    )


def in_words(names: Sequence[str], most: int = 2) -> str:
    """Return the first names, and how many more there are."""
    shown = [name.removeprefix("network.") for name in names[:most]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
