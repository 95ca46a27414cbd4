"""Detect what fully_shard leaves out of a step without an error. Imports torch at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ddpbench.strategies.trees import tensors

_MOST_NAMES = 2


class LostParts:
    """Watches a sharded model's steps for what FSDP leaves out of them."""

    def __init__(self, model: nn.Module, hooked: list[str], *, in_blocks: bool) -> None:
        """`hooked` are the names of the parameters that had hooks when the model was sharded."""
        self._model, self._hooked, self._in_blocks = model, dict.fromkeys(hooked), in_blocks
        self._gathered: dict[str, nn.Parameter] = {}
        """Parameters that forwards compute with in place of shards."""
        self._before: dict[str, torch.Tensor] = {}
        """Their values when their module's forward began."""
        self._written: dict[str, None] = {}
        self._late: dict[str, None] = {}
        for name, module in model.named_modules():
            if _is_sharded(
                module
            ):  # FSDP gathers before the first of these hooks, and frees after the second
                module.register_forward_pre_hook(partial(self._begin, name))
                module.register_forward_hook(partial(self._end, name), prepend=True)

    def __call__(self) -> str:
        """Return what was lost so far, why, and what to do; empty if nothing was."""
        self._find_late()
        if self._late:
            whole = 'set options.fsdp.wrap = "whole", or ' if self._in_blocks else ""
            return (
                f"FSDP averages a block's gradients once its inputs have theirs, and a backward made those of "
                f"{_named(self._late)} later, as the gradient of a gradient does (torch.autograd.grad with "
                f"create_graph=True): they were left out. Instead {whole}use ddp or master"
            )
        if self._written:
            return (
                f"its forward writes into {_named(self._written)}, of which FSDP gathers a copy for each forward and "
                "frees it: what was written is lost. Write into a buffer, or use ddp or master"
            )
        if self._hooked:
            return (
                f"FSDP exchanges parameters for shards without their hooks, so that those of {_named(self._hooked)} "
                "are not called: change gradients after backward(), with loss() in before_update(), or use ddp"
            )
        return ""

    def _begin(self, prefix: str, module: nn.Module, _inputs: Any) -> None:
        self._find_late()
        for name, each in _whole_ones(prefix, module):
            self._gathered[name] = each
            self._before[name] = each.detach().clone()

    def _end(self, prefix: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        for each in tensors(output):
            if each.requires_grad:
                each.register_hook(self._find_hooked)  # type: ignore[no-untyped-call]
        for name, each in _whole_ones(prefix, module):
            before = self._before.pop(name, None)
            if before is not None and not torch.equal(before, each.detach()):
                self._written[name] = None

    def _find_hooked(self, _gradient: torch.Tensor) -> None:
        """Note, within a backward, shards with hooks, as of a step that adds them each time: FSDP calls none."""
        shards = (each for each in self._model.named_parameters() if isinstance(each[1], DTensor))
        self._hooked |= {name: None for name, each in shards if each._backward_hooks}

    def _find_late(self) -> None:
        """Note gradients that are still in full size: FSDP shards them in a backward, and begins no forward with
        any."""
        self._late |= {name: None for name, each in self._gathered.items() if each.grad is not None}


def _is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def _whole_ones(prefix: str, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in module.named_parameters(prefix) if not isinstance(each, DTensor)]


def _named(names: Any) -> str:
    shown = [name.removeprefix("network.") for name in names]
    more = len(shown) - _MOST_NAMES
    return ", ".join(shown[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
