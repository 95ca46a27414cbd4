"""The module that computes a plain workload's loss. Imports torch at once, so only `PlainWorkload.model` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class _Shared:
    """Holds a function that copies of a model share: what it is bound to may hold the whole dataset."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __deepcopy__(self, _memo: Any) -> _Shared:
        return self


class ModelWithLoss(nn.Module):
    """The user's model under the user's loss: a batch to its loss, of shape [1] so that replicas' can be gathered."""

    def __init__(self, network: nn.Module, loss: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise TypeError(f"model() returned {_what(network)}; it must return a torch.nn.Module")
        self.network = network
        self._loss = _Shared(loss)

    def forward(self, batch: Any) -> torch.Tensor:
        loss = self._loss.function(self.network, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError(
                f"loss(model, batch) returned {_what(loss)}; it must return a scalar: "
                "the mean over the batch's samples"
            )
        return loss.reshape(1)


def _what(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
