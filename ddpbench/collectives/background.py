"""All-reduces in a thread of their own, one after the other, so that backward can go on. Imports torch at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from ddpbench.collectives.base import Collective


class Background:
    """Works off all-reduces in the order in which they are handed over, which must be the same on all ranks.

    Its thread sleeps in the kernel while it waits for a message, and holds Python's lock for some 50 µs a message.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def all_reduce(
        self, tensor: torch.Tensor, done: Callable[[int], None] | None = None
    ) -> torch.futures.Future[torch.Tensor]:
        """Has a tensor replaced by the sum over all ranks; the future then holds it, or the error.

        Right before, `done` is called with the bytes that this rank sent for it, in the thread that did.
        """
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def work() -> None:
            transport = self._collective.transport
            before = sum(transport.sent)
            try:
                self._collective.all_reduce(tensor)
                if done is not None:
                    done(sum(transport.sent) - before)
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]  # torch names the wrong type
            except BaseException as error:  # which a future does not take
                future.set_exception(RuntimeError(repr(error)))  # type: ignore[arg-type]
            else:
                future.set_result(tensor)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ddpbench-collectives", daemon=True)
            self._thread.start()
        # What is set as an exception is a value to the reducer, in C++; through `then` it becomes one there too.
        summed: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value())
        self._work.put(work)
        return summed

    def close(self) -> None:
        """Ends the thread after what it has been given."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
