"""Ranks as threads of one process, for tests: messages are copied at the earliest or the latest possible time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

TIMEOUT_S = 20.0


class _Wire:
    """Messages from one rank to another."""

    def __init__(self) -> None:
        self.sends: deque[torch.Tensor] = deque()
        self.receives: deque[tuple[torch.Tensor, threading.Event]] = deque()


class Network:
    """Wires between all ranks. `early` copies when both ends are ready, otherwise when the receiver waits.

    A network may copy at any time between the two: an algorithm that is right with both does not change what it sends
    until it must have arrived, and expects no particular content in memory that is still being received.
    """

    def __init__(self, size: int, *, early: bool) -> None:
        self.size, self.early = size, early
        self.wires = {(a, b): _Wire() for a in range(size) for b in range(size)}
        self.changed = threading.Condition()


class ThreadTransport:
    """A rank's end; it replaces `ddpbench.collectives.transport.Transport` of a process group."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network, self.rank, self.size = network, rank, network.size
        self.phase = ""
        self.sent = [0] * self.size

    def send(self, part: torch.Tensor, to: int) -> None:
        assert part.is_contiguous()
        if part.numel():
            self.sent[to] += part.numel() * part.element_size()
            with self._network.changed:
                self._network.wires[self.rank, to].sends.append(part)
                self._match(self.rank, to)
                self._network.changed.notify_all()

    def receive(self, part: torch.Tensor, source: int) -> Any:
        assert part.is_contiguous()
        there = threading.Event()
        if not part.numel():
            there.set()
            return _Arrival(self, source, there)
        with self._network.changed:
            self._network.wires[source, self.rank].receives.append((part, there))
            self._match(source, self.rank)
        return _Arrival(self, source, there)

    def flush(self) -> None:
        pass

    def _match(self, source: int, to: int, *, late: bool = False) -> None:
        wire = self._network.wires[source, to]
        while (self._network.early or late) and wire.sends and wire.receives:
            part, there = wire.receives.popleft()
            part.copy_(wire.sends.popleft())
            there.set()
            late = False


class _Arrival:
    def __init__(self, transport: ThreadTransport, source: int, there: threading.Event) -> None:
        self._transport, self._source, self._there = transport, source, there

    def wait(self) -> None:
        network, transport = self._transport._network, self._transport
        with network.changed:
            while not self._there.is_set():
                transport._match(self._source, transport.rank, late=True)
                if not self._there.is_set() and not network.changed.wait(TIMEOUT_S):
                    raise TimeoutError(f"rank {transport.rank} waits for {self._source}")


def run_threads(network: Network, work: Callable[[ThreadTransport], None]) -> None:
    """Call `work` in a thread for each rank; raise the first error of any."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            work(ThreadTransport(network, rank))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(network.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
