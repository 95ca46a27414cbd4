"""A training loop that belongs to a framework, run half a step at a time. Needs the package greenlet.

`Trainer.fit` calls the harness's code, but the harness calls a replica: `gradients_of` a batch, then `apply`. So the
framework's loop runs in a separate greenlet, on the same thread and stack of contexts as everything else; control
leaves it where it asks for the next batch and where it has gradients, and returns when those are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class LoopEndedError(RuntimeError):
    """Raised if a framework's loop ended, or asked for something out of turn."""


class Inverted:
    """A framework's loop from the outside: give it a batch, get the loss; let it update."""

    def __init__(self, name: str, run: Callable[[Inverted], None]) -> None:
        """`run` is the framework's entire loop. It takes its batches from `batches()` and calls `gradients_are_there`.

        Nothing of it runs before the first batch is given.
        """
        from greenlet import getcurrent, greenlet

        self._name, self._here = name, getcurrent
        self._loop = greenlet(lambda: run(self))
        self._outside: Any = None
        self._batch: Any = None
        self._loss: Any = None
        self._ending = False
        self._at = "begin"
        """The state in which the loop waits: `begin`, `batch`, `update` or `ended`."""

    def gradients_of(self, batch: Any) -> torch.Tensor:
        """Give the loop a batch; return the loss that it reports once gradients are aggregated."""
        if self._at == "begin":
            self._enter("batch")
        self._expect("batch")
        self._batch = batch
        self._enter("update")
        loss: torch.Tensor = self._loss
        self._loss = self._batch = None
        return loss

    def update(self) -> None:
        """Let the loop update, and continue until it asks for the next batch."""
        self._expect("update")
        self._enter("batch")

    def close(self) -> None:
        """End the loop, by ending its batches."""
        if self._at in ("begin", "ended"):
            self._at = "ended"
            return
        self._ending = True
        while not self._loop.dead:
            self._outside = self._here()
            self._loop.switch()
        self._at = "ended"

    def batches(self) -> Iterator[Any]:
        """Yield the batches that the loop trains on, each as it is given, until `close`."""
        while not self._ending:
            self._leave("batch")
            if self._ending:
                return
            yield self._batch

    def gradients_are_there(self, loss: torch.Tensor) -> None:
        """Report a step's loss; the loop calls it when gradients are aggregated, and not used yet."""
        self._loss = loss
        if not self._ending:
            self._leave("update")

    def _expect(self, state: str) -> None:
        if self._at != state:
            raise LoopEndedError(f"{self._name}'s loop waits for its {self._at}, not for its {state}")

    def _enter(self, wanted: str) -> None:
        """Run the loop until it waits for something, which must be what is wanted."""
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
