"""Run all-reduces one after another in a separate thread, so that backward can continue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from ddpbench.collectives.base import Collective


class Background:
    """Runs all-reduces in a thread, in the order of submission, which must be the same on all ranks.

    The thread holds the GIL for about 50 µs per message.
    """

    def __init__(self, collective: Collective | None = None) -> None:
        self._collective = collective
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def all_reduce(
        self,
        tensor: torch.Tensor,
        done: Callable[[int], None] | None = None,
        begins: Callable[[], None] | None = None,
    ) -> torch.futures.Future[torch.Tensor]:
        """Start to replace a tensor by its sum over all ranks; return a future of the tensor, or of the error.

        The background thread calls `begins` when it starts this all-reduce. Right before the future gets its result, it
        calls `done` with the number of bytes that this rank sent.
        """
        collective = self._collective
        assert collective is not None

        def act() -> torch.Tensor:
            transport = collective.transport
            if begins is not None:
                begins()
            before = sum(transport.sent)
            collective.all_reduce(tensor)
            if done is not None:
                done(sum(transport.sent) - before)
            return tensor

        return self.put(act)

    def put(self, act: Callable[[], torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
        """Queue `act` for the background thread; return a future of its result or exception."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def work() -> None:
            try:
                result = act()
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]  # torch names the wrong type
            except BaseException as error:  # a future accepts only an Exception
                future.set_exception(RuntimeError(repr(error)))  # type: ignore[arg-type]
            else:
                future.set_result(result)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ddpbench-collectives", daemon=True)
            self._thread.start()
        # DDP's reducer, in C++, takes an exception set on a future for a value; with `then` it sees an exception.
        given: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value())
        self._work.put(work)
        return given

    def close(self) -> None:
        """Finish the queued work, then end the thread."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
