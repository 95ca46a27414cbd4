"""Detects what fully_shard silently leaves out of a step."""

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
    """Watches a sharded model's steps for three things that FSDP loses: hooks, writes to parameters, late gradients."""

    def __init__(self, model: nn.Module, hooked: list[str], *, in_blocks: bool) -> None:
        """Begin to watch `model`. `hooked` names the parameters that had hooks before sharding.

        `in_blocks` is true if the model is sharded block by block.
        """
        self._model, self._hooked, self._in_blocks = model, dict.fromkeys(hooked), in_blocks
        self._gathered: dict[str, nn.Parameter] = {}
        """The gathered parameters with which forward computes, by name."""
        self._before: dict[str, torch.Tensor] = {}
        """The gathered parameters' values at the beginning of their module's forward, by name."""
        self._written: dict[str, None] = {}
        self._late: dict[str, None] = {}
        for name, module in model.named_modules():
            if _is_sharded(
                module
            ):  # FSDP gathers before the first of these hooks, and frees after the second
                module.register_forward_pre_hook(partial(self._begin, name))
                module.register_forward_hook(partial(self._end, name), prepend=True)

    def __call__(self) -> str:
        """Say what was lost so far, why, and what to do; return "" if nothing was lost."""
        self._find_late()
        if self._late:
            whole = 'set options.fsdp.wrap = "whole", or ' if self._in_blocks else ""
            return (
                "FSDP averages a block's gradients as soon as the block's inputs have gradients, but a backward "
                f"made those of {_named(self._late)} later, as the gradient of a gradient does "
                f"(torch.autograd.grad with create_graph=True): they were left out. Instead {whole}use ddp or "
                "master"
            )
        if self._written:
            return (
                f"its forward writes into {_named(self._written)}, but FSDP frees its gathered copy after each "
                "forward, so the written values are lost: write into a buffer, or use ddp or master"
            )
        if self._hooked:
            return (
                f"FSDP replaces parameters by shards without their hooks, so the hooks of {_named(self._hooked)} "
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
        """Record shards with hooks during backward, because FSDP does not call them. Each step may add hooks."""
        shards = (each for each in self._model.named_parameters() if isinstance(each[1], DTensor))
        self._hooked |= {name: None for name, each in shards if each._backward_hooks}

    def _find_late(self) -> None:
        """Record gathered parameters that still have a gradient, which FSDP should have sharded."""
        self._late |= {name: None for name, each in self._gathered.items() if each.grad is not None}


def _is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def _whole_ones(prefix: str, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in module.named_parameters(prefix) if not isinstance(each, DTensor)]


def _named(names: Any) -> str:
    shown = [name.removeprefix("network.") for name in names]
    more = len(shown) - _MOST_NAMES
    return ", ".join(shown[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
