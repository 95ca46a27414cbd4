"""A module like torch.nn.DataParallel for the CPU, which divides each call and its backward among threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd import backward

from ddpbench.strategies.base import CannotTrainError
from ddpbench.strategies.trees import chunk, leaves, map_tensors, tensors

OnAll = Callable[[Sequence[Callable[..., Any]], Sequence[tuple[Any, ...]]], list[Any]]
"""Type of a function that calls function i in thread i with its arguments, and returns the results in order."""
Replicate = Callable[..., tuple[nn.Module, dict[torch.Tensor, torch.Tensor]]]


class ThreadedModule(nn.Module):
    """A module that splits the arguments of each call along the first dimension, and joins its replicas' outputs.

    As in torch.nn.DataParallel on GPUs, replicas are made for each call, and backward sums their gradients into the
    module's parameters. Outputs may be tensors, or tuples, lists and dictionaries of tensors.
    """

    def __init__(self, module: nn.Module, count: int, on_all: OnAll, replicate: Replicate) -> None:
        super().__init__()
        self.module = module
        self.count, self.on_all, self.replicate = count, on_all, replicate

    def __deepcopy__(self, memo: dict[int, Any]) -> ThreadedModule:
        """Return a copy in the same threads, which a user's class may need to store averaged weights."""
        memo |= {id(each): each for each in (self.on_all, self.replicate)}
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        trained = [each for each in self.module.parameters() if each.requires_grad]
        given = (arguments, settings)
        call = _Call(self, given, trained)
        flat = _Threads.apply(call, *tensors(given), *trained)  # type: ignore[no-untyped-call]
        parts = iter(flat if isinstance(flat, tuple) else (flat,))
        return map_tensors(lambda _: next(parts), call.shape)


class _Call:
    """A call of a `ThreadedModule`, with the tensors that its backward needs."""

    def __init__(self, owner: ThreadedModule, given: tuple[Any, Any], trained: list[nn.Parameter]) -> None:
        self.owner, self.given, self.trained = owner, given, trained
        self._gradients = torch.is_grad_enabled()
        self._autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        self.shape: Any = None
        """The first replica's output, which shows where the joined tensors belong."""
        self.inputs: list[list[torch.Tensor]] = []
        self.outputs: list[list[torch.Tensor]] = []
        self.parameters: list[dict[torch.Tensor, torch.Tensor]] = []

    def run(self) -> list[torch.Tensor]:
        owner = self.owner
        wanted = [each.requires_grad for each in tensors(self.given)]
        shards = [_leaves(shard, wanted) for shard in chunk(self.given, owner.count)]
        replicas = [owner.replicate(owner.module, alias=number == 0) for number in range(owner.count)]
        self.inputs = [list(tensors(shard)) for shard in shards]
        self.parameters = [parameters for _, parameters in replicas]
        results = owner.on_all([self._calling(replica) for replica, _ in replicas], shards)
        self.shape = results[0]
        _refuse_objects(self.shape)
        self.outputs = [list(tensors(result)) for result in results]
        return [_gathered([one.detach() for one in same]) for same in zip(*self.outputs, strict=True)]

    def _calling(self, replica: nn.Module) -> Callable[..., Any]:
        """Call a replica in the caller's grad mode and autocast, which are set per thread."""
        enabled, dtype = self._autocast

        def call(arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
            with torch.set_grad_enabled(self._gradients), torch.autocast("cpu", dtype, enabled=enabled):
                return replica(*arguments, **settings)

        return call

    def back(self, slopes: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        pairs: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in self.outputs]
        for index, slope in enumerate(slopes):
            if slope is None or not self.outputs[0][index].requires_grad:
                continue
            own = [outputs[index] for outputs in self.outputs]
            cuts = torch.split(slope, [one.shape[0] if one.dim() else 1 for one in own])
            for number, (one, cut) in enumerate(zip(own, cuts, strict=True)):
                pairs[number].append((one, cut.reshape(one.shape)))
        walks = [([one for one, _ in own], [cut for _, cut in own]) for own in pairs]
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        self.owner.on_all([partial(backward, retain_graph=keeps)] * len(walks), walks)
        whole = list(tensors(self.given))
        found: list[torch.Tensor | None] = [
            _whole_slope(each, [_slope(part) for part in same]) if each.requires_grad else None
            for each, same in zip(whole, zip(*self.inputs, strict=True), strict=True)
        ]
        for parameter in self.trained:
            grads = [own[parameter].grad for own in self.parameters]
            there = [each for each in grads if each is not None]
            found.append(torch.stack(there).sum(0) if there else None)
        for leaf in chain(*self.inputs, *(own.values() for own in self.parameters)):
            leaf.grad = None  # a retained graph may be walked again
        return found


def _refuse_objects(output: Any) -> None:
    """Check that torch.nn.DataParallel could gather an output on GPUs.

    Of an object that torch could rebuild, such as a decoder's cache, only the first replica's is returned.

    Raises:
        CannotTrainError: the output has a number, a text or another object that is neither a tensor nor a container of
            tensors.
    """
    for each in leaves(output):
        if not _is_gathered(each):
            raise CannotTrainError(
                f"its forward returns an object of type {type(each).__name__}, which torch.nn.DataParallel cannot "
                "gather from its replicas: return tensors, alone or in tuples, lists and dictionaries"
            )


def _is_gathered(each: Any) -> bool:
    """Return whether torch can gather it: a tensor, None, or an object rebuilt from its parts."""
    if each is None or isinstance(each, torch.Tensor):
        return True
    if isinstance(each, str | bytes):  # the parts of texts are texts again, those of bytes are numbers
        return False
    try:
        parts = list(each)
        type(each)(iter(parts))
    except Exception:  # it has no parts, or is not made from them
        return False
    return all(map(_is_gathered, leaves(parts)))


class _Threads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *_flat: torch.Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)  # an output that the loss does not use has no gradient
        gathered = call.run()
        ctx.mark_non_differentiable(
            *(one for one, own in zip(gathered, call.outputs[0], strict=True) if not own.requires_grad)
        )
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():  # with create_graph: the result has no graph, and would count as constant
            raise CannotTrainError(
                "its step takes gradients of gradients (create_graph=True), which data_parallel cannot compute "
                "on CPUs, where threads take the place of GPUs"
            )
        return (None, *ctx.call.back(slopes))


def _leaves(shard: Any, wanted: Sequence[bool]) -> Any:
    """Copy a shard's tensors as leaves of a separate graph; `wanted` says which need gradients."""
    each_wanted = iter(wanted)
    return map_tensors(lambda tensor: tensor.detach().clone().requires_grad_(next(each_wanted)), shard)


def _whole_slope(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join the replicas' gradients, or sum them if every replica got the full input."""
    return torch.stack(list(parts)).sum(0) if parts[0].shape == whole.shape else torch.cat(list(parts))


def _slope(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _gathered(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(1) if part.dim() == 0 else part for part in parts])
