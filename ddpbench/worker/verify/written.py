"""Find parameters that a model's own forward pass overwrites, as nn.Embedding(max_norm=...) does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ddpbench.worker.verify.optimizers import in_words


def written_by(model: torch.nn.Module, compute: Callable[[], object]) -> list[str]:
    """Call `compute`, and return the names of the model's parameters whose values the call changed."""
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    compute()
    return changed_since(before, model)


def changed_since(before: dict[str, torch.Tensor], model: torch.nn.Module) -> list[str]:
    """Return the names of the model's parameters whose values differ from those in `before`."""
    return [
        name
        for name, each in model.named_parameters()
        if name in before and not same(each.detach(), before[name])
    ]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors hold the same numbers; NaN is equal to NaN."""
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def writes_sentence(names: Sequence[str]) -> str:
    """Say in a sentence that the model's forward pass overwrites these parameters."""
    which = f" ({in_words(names)})" if names else ""
    return (
        f"the model's forward writes into its own parameters{which}, as nn.Embedding(max_norm=...) does. Each "
        "rank does this with its own batch, and no strategy aggregates the changes"
    )


def late_sentence(names: Sequence[str]) -> str:
    """Return a sentence that these parameters became trainable after the model was wrapped; `""` for no names."""
    what = f"{in_words(names)} begin to train after the model was wrapped"
    return f"{what}, and only gradients of parameters that were trained before are averaged" if names else ""
