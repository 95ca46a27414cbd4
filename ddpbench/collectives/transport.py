"""Send and receive messages between the ranks of a process group, and count their bytes."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist

from ddpbench.errors import NOT_TRANSFERRED

_TAG = 0


class CollectiveError(RuntimeError):
    """Raised if a message did not arrive because another rank, or the network, has failed."""


class Transport:
    """A rank's connections to all others. Messages between two ranks arrive in the order in which they were sent.

    `sent` and `received` have the number of bytes sent to and received from each rank, by rank.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Take the group of all ranks (default: the default group), which nothing else may use meanwhile."""
        self._group = group
        found = dist.group.WORLD if group is None else group
        assert found is not None
        self._direct: dist.ProcessGroup = found
        """The group, called directly because the checks of dist.isend and irecv take as long as a message."""
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.sent = [0] * self.size
        self.received = [0] * self.size
        self.phase = ""
        """Name of the current operation, for error messages."""
        self._sends: deque[tuple[int, dist.Work]] = deque()

    def send(self, part: torch.Tensor, to: int) -> None:
        """Start to send a contiguous tensor, without waiting. The tensor must not change before the receiver has it.

        Raises:
            ValueError: `to` is not another rank.
        """
        self._check_other(to, "send", "to")
        if not part.numel():
            return
        work = self._direct.send([part], to, _TAG)
        self.sent[to] += part.numel() * part.element_size()
        # Not waited for: two ranks that both waited here would each wait for the other to receive.
        self._sends.append((to, work))

    def receive(self, part: torch.Tensor, source: int) -> Arrival:
        """Start to receive into a contiguous tensor, and return an `Arrival`, whose `wait()` waits for the message.

        Raises:
            ValueError: `source` is not another rank.
        """
        self._check_other(source, "receive", "from")
        if not part.numel():
            return Arrival(self, source, None)
        work = self._direct.recv([part], source, _TAG)
        self.received[source] += part.numel() * part.element_size()
        return Arrival(self, source, work)

    def _check_other(self, other: int, method: str, direction: str) -> None:
        # Without this check, gloo ends the process, waits forever or raises an error that names no line.
        if 0 <= other < self.size and other != self.rank:
            return
        itself = other == self.rank
        which = "the rank itself" if itself else f"rank {other}, which does not exist"
        advice = "" if itself else " (is a `% size` missing?)"
        raise ValueError(
            f"{method}() was called for a message {direction} {which}; use another of the ranks 0 to "
            f"{self.size - 1}{advice}"
        )

    def receive_any(self, part: torch.Tensor) -> int:
        """Receive into a contiguous tensor from the first other rank that sends; return that rank.

        Raises:
            CollectiveError: a connection is closed.
        """
        try:
            source = dist.recv(part, src=None, group=self._group)
        except RuntimeError as error:
            raise CollectiveError(
                f"rank {self.rank}: {self.phase}: the message from any rank {NOT_TRANSFERRED}: {error}"
            ) from error
        self.received[source] += part.numel() * part.element_size()
        return source

    def flush(self) -> None:
        """Wait until all sent tensors have left this rank's memory.

        Raises:
            CollectiveError: a message failed.
        """
        while self._sends:
            to, work = self._sends.popleft()
            self.wait(work, to, "to")

    def wait(self, work: dist.Work, other: int, direction: str) -> None:
        """Wait for a message to or from another rank.

        Raises:
            CollectiveError: the message failed; the error names both ranks and the current operation.
        """
        try:
            work.wait()
        except RuntimeError as error:
            raise CollectiveError(
                f"rank {self.rank}: {self.phase}: the message {direction} rank {other} {NOT_TRANSFERRED}: "
                f"{error}"
            ) from error


class Arrival:
    """A message that is being received."""

    __slots__ = ("_source", "_transport", "_work")

    def __init__(self, transport: Transport, source: int, work: dist.Work | None) -> None:
        self._transport, self._source, self._work = transport, source, work

    def wait(self) -> None:
        """Wait until the message has arrived.

        Raises:
            CollectiveError: the message will not arrive.
        """
        if self._work is not None:
            self._transport.wait(self._work, self._source, "from")
