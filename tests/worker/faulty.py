"""Faults of a strategy, planted into its replicas for tests of proofs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpbench.strategies.own_step import around_backward
from ddpbench.strategies.trees import chunk, concatenate

FAULTS = (
    "scaled",
    "divided_twice",
    "rank_left_out",
    "unsynchronised",
    "stale",
    "update_before_gradient",
    "weight_skipped",
    "bias_skipped",
    "other_state",
)
"""Gradients times 0.9; gradients divided twice by the number of ranks; the last rank's samples left out; each rank's
own gradients; gradients of the step before; updates that come before their gradients; the first weight, or the first
bias, never updated; an optimizer's state that differs by rank.
"""


@dataclass(frozen=True)
class _Planted:
    fault: str
    rank: int
    ranks: int

    def call(
        self, right: Callable[..., torch.Tensor], steps: bool, replica: Any, *batch: Any
    ) -> torch.Tensor:
        """Call the replica's method `right` with the fault; `steps` says whether it makes the update as well."""
        self._spoil_state(replica)
        wrapped = getattr(replica, "_wrapped", torch.nn.Module()).modules()
        ddps = [each for each in wrapped if isinstance(each, DistributedDataParallel)]
        several = torch.distributed.get_world_size() > 1
        batch = batch if several else self._without_samples(batch)
        out = self.fault == "rank_left_out" and several and self.rank == self.ranks - 1

        def backward(run: Callable[[], None]) -> None:
            run()
            if steps:
                self._spoil_gradients(replica)

        with ExitStack() as stack:
            for each in ddps if self.fault == "unsynchronised" else ():
                stack.enter_context(each.no_sync())
            stack.enter_context(around_backward(backward, (threading.get_ident(),), 0.0 if out else 1.0))
            loss = right(replica, *batch)
        if not steps:
            self._spoil_gradients(replica)
        return loss

    def _without_samples(self, batch: Any) -> Any:
        if self.fault not in ("rank_left_out", "unsynchronised"):
            return batch
        parts = chunk(batch, self.ranks)
        return concatenate(
            [*parts[:-1], parts[0]] if self.fault == "rank_left_out" else [parts[0]] * len(parts)
        )

    def _spoil_state(self, replica: Any) -> None:
        states = replica.optimizer.state.values() if self.fault == "other_state" and self.rank == 1 else ()
        for value in [each for state in states for each in state.values()]:
            if torch.is_tensor(value) and value.numel() > 1:
                value.mul_(1.1)

    def _spoil_gradients(self, replica: Any) -> None:
        parameters = [each for each in replica.job.model.parameters() if each.grad is not None]
        gradients = [each.grad for each in parameters]
        if self.fault == "scaled":
            torch._foreach_mul_(gradients, 0.9)
        elif self.fault == "divided_twice":
            torch._foreach_div_(gradients, float(self.ranks))
        elif self.fault in ("weight_skipped", "bias_skipped"):
            gradients[self.fault == "bias_skipped"].zero_()
        elif self.fault in ("stale", "update_before_gradient"):
            first = 1.0 if self.fault == "stale" else 0.0
            earlier = vars(replica).get("earlier", [each * first for each in gradients])
            replica.earlier = [each.clone() for each in gradients]
            for each, old in zip(parameters, earlier, strict=True):
                each.grad = old


@contextmanager
def planted(kind: Any, fault: str, rank: int, ranks: int) -> Iterator[None]:
    """Plant `fault` into replicas of this class, on this rank; `""` plants nothing."""
    methods = {name: getattr(kind, name) for name in ("gradients_of", "own_step")}
    one = _Planted(fault, rank, ranks)

    def wrong(right: Callable[..., torch.Tensor], steps: bool) -> Callable[..., torch.Tensor]:
        def made(replica: Any, *batch: Any) -> torch.Tensor:
            return one.call(right, steps, replica, *batch)

        return made

    for name, right in methods.items():
        setattr(kind, name, wrong(right, name == "own_step"))
    try:
        yield
    finally:
        for name, right in methods.items():
            setattr(kind, name, right)
