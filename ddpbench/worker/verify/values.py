"""Functions on gradients and parameters stored by name, and on the parameters that a model trains."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from ddpbench.strategies.trees import tensors

Tensors = dict[str, torch.Tensor]
"""Gradients or parameters by their names in the model."""


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a dense tensor; an embedding's gradient may be sparse."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def as_trained(gradient: torch.Tensor, *, sparse: bool) -> torch.Tensor:
    """Return a copy of a dense gradient for an update.

    If the model's own gradient is sparse, so is the copy, which has the rows that are not zero. Optimizers such as
    SparseAdam take no other gradients.
    """
    return gradient.to_sparse(1) if sparse else gradient.clone()


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor in double precision (complex128 if it is complex)."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the Euclidean norm of all tensors as one vector."""
    if not tensors:
        return torch.zeros((), dtype=torch.float64)
    norms = [torch.linalg.vector_norm(wide(each)) for each in tensors]
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole


def are_finite(values: Tensors) -> bool:
    """Return whether all numbers are finite."""
    return all(bool(torch.isfinite(each).all()) for each in values.values())


def infinite_of(values: Tensors) -> list[str]:
    """Return the names of the tensors that contain NaN or an infinity."""
    return [name for name, each in values.items() if not bool(torch.isfinite(each).all())]


def has_numbers(batch: Any) -> bool:
    """Return whether all floating-point values in a batch are finite."""
    return all(bool(torch.isfinite(each).all()) for each in tensors(batch) if each.is_floating_point())


def mean(parts: Iterable[Tensors]) -> Tensors:
    """Return the mean of each tensor over all parts, by name, adding parts one at a time to save memory.

    A name that some part lacks, such as a parameter that was frozen midway, is left out.
    """
    total: Tensors = {}
    count = 0
    for part in parts:
        total = {name: total[name] + part[name] for name in total if name in part} if count else part
        count += 1
    return {name: value / count for name, value in total.items()}


def trained_names(model: torch.nn.Module) -> set[str]:
    """Return the names of a model's trainable parameters."""
    return {name for name, each in model.named_parameters() if each.requires_grad}


def trained(model: torch.nn.Module) -> Tensors:
    """Return copies of a model's trainable parameters, by name."""
    return {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}


def thaw(model: torch.nn.Module, names: Collection[str]) -> None:
    """Make the parameters with these names trainable again, so that parameters frozen by a step are compared too."""
    for name, each in model.named_parameters():
        if name in names:
            each.requires_grad_(True)


def has_batch_statistics(model: torch.nn.Module) -> bool:
    """Return whether a model has BatchNorm layers, whose output depends on the entire batch."""
    return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())


def share_memory(model: torch.nn.Module) -> bool:
    """Return whether two parameters of a model share memory, which a copy of the model would not preserve."""
    places = [
        each.untyped_storage().data_ptr() for each in model.parameters() if each.layout == torch.strided
    ]
    return len(set(places)) < len(places)
