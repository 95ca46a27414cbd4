"""Runs a framework's own training loop half a step at a time, in a greenlet of the same thread.

ddpbench calls a replica's `gradients_of`, then `apply`, but a loop such as `Trainer.fit` expects to call other code. It
switches back to ddpbench when it asks for the next batch, and when gradients are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class LoopEndedError(RuntimeError):
    """A framework's loop ended too early, or did not alternate between batches and updates."""


class Inverted:
    """Drives a framework's loop from outside. `gradients_of` passes it a batch, and `update` lets it update."""

    def __init__(self, name: str, run: Callable[[Inverted], None]) -> None:
        """Prepare to run `run`, the framework's entire loop, which the first batch starts.

        It must take batches from `batches()`, and call `gradients_are_there` before each update. `name` is for
        messages.
        """
        from greenlet import getcurrent, greenlet

        self._name, self._here = name, getcurrent
        self._loop = greenlet(lambda: run(self))
        self._outside: Any = None
        self._batch: Any = None
        self._loss: Any = None
        self._ending = False
        self._at = "begin"
        """The event that the loop waits for (`begin`, `batch` or `update`), or `ended`."""

    def gradients_of(self, batch: Any) -> torch.Tensor:
        """Pass a batch to the loop, and return the loss that the loop reports once gradients are aggregated."""
        if self._at == "begin":
            self._enter("batch")
        self._expect("batch")
        self._batch = batch
        self._enter("update")
        loss: torch.Tensor = self._loss
        self._loss = self._batch = None
        return loss

    def update(self) -> None:
        """Let the loop make the update, and run it until it asks for the next batch."""
        self._expect("update")
        self._enter("batch")

    def close(self) -> None:
        """End the loop by ending its iteration over batches."""
        if self._at in ("begin", "ended"):
            self._at = "ended"
            return
        self._ending = True
        while not self._loop.dead:
            self._outside = self._here()
            self._loop.switch()
        self._at = "ended"

    def batches(self) -> Iterator[Any]:
        """Yield to the loop the batches that `gradients_of` gets, until `close` is called."""
        while not self._ending:
            self._leave("batch")
            if self._ending:
                return
            yield self._batch

    def gradients_are_there(self, loss: torch.Tensor) -> None:
        """Report a step's loss. The loop calls this after gradients are aggregated and before the update."""
        self._loss = loss
        if not self._ending:
            self._leave("update")

    def _expect(self, state: str) -> None:
        if self._at != state:
            raise LoopEndedError(f"{self._name}'s loop waits for its {self._at}, not for its {state}")

    def _enter(self, wanted: str) -> None:
        """Run the loop until it waits again; raise `LoopEndedError` unless it waits for `wanted`."""
        self._outside = self._here()
        self._loop.switch()
        if self._loop.dead:
            self._at = "ended"
            raise LoopEndedError(f"{self._name}'s loop ended by itself")
        if self._at != wanted:
            raise LoopEndedError(
                f"{self._name}'s loop asked for its {self._at} where its {wanted} was due: it must make "
                "one update per batch"
            )

    def _leave(self, state: str) -> None:
        self._at = state
        self._outside.switch()
