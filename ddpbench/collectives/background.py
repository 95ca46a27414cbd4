"""All-reduces in a separate thread, one after the other, so that backward can continue. Imports torch at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from ddpbench.collectives.base import Collective


class Background:
    """Runs all-reduces in the order in which they are submitted, which must be the same on all ranks.

    Its thread sleeps in the kernel while it waits for a message, and holds Python's lock for some 50 µs per message.
    """

    def __init__(self, collective: Collective | None = None) -> None:
        """Without a `collective`, it only runs functions passed to `put`."""
        self._collective = collective
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def all_reduce(
        self,
        tensor: torch.Tensor,
        done: Callable[[int], None] | None = None,
        begins: Callable[[], None] | None = None,
    ) -> torch.futures.Future[torch.Tensor]:
        """Replace a tensor by the sum over all ranks; return a future that then holds it, or the error.

        Right before, `done` is called in the sending thread with the bytes that this rank sent for it, and `begins`
        when that thread starts on it.
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
        """Call `act` when its turn comes; return a future that then holds its result, or its error."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def work() -> None:
            try:
                result = act()
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]  # torch names the wrong type
            except BaseException as error:  # a future accepts no others
                future.set_exception(RuntimeError(repr(error)))  # type: ignore[arg-type]
            else:
                future.set_result(result)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ddpbench-collectives", daemon=True)
            self._thread.start()
        # The reducer, in C++, takes an exception set on a future for a value; `then` makes it an exception there too.
        given: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value())
        self._work.put(work)
        return given

    def close(self) -> None:
        """End the thread after the work that it has been given."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
