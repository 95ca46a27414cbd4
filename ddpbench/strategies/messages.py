"""Messages from one rank to another, noted on both sides. Imports torch at once, so only replicas import it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist

from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import Recorder

_CLOCK = HostClock()
UNSEEN_NS = 50_000
"""A send that takes no longer than this to wait for was over before, unseen."""


class Message:
    """A message under way, which `wait` notes as this rank's part in a transfer of two ranks.

    The receiver's part ends when it has what it waited for. When a send was over, torch tells only one who waits: where
    that one does not have to, the sender's part ends as it begins, and the transfer is the receiver's alone.
    """

    def __init__(
        self, recorder: Recorder, start: Callable[[], Any], *, bucket: int, tensor: torch.Tensor, sends: bool
    ) -> None:
        """`start` hands the message over; `bucket` tells it from others of the step, alike on both sides."""
        self._recorder, self._bucket, self._sends = recorder, bucket, sends
        self._size = tensor.numel() * tensor.element_size()
        self._start = recorder.mark()
        self._work = start()

    def wait(self) -> None:
        """Waits for its end, as `torch.distributed.Work.wait` does."""
        before = _CLOCK.now()
        self._work.wait()
        unseen = self._sends and _CLOCK.now() - before <= UNSEEN_NS
        self._recorder.add_transfer(
            bucket=self._bucket,
            op="send",
            size=self._size,
            start=self._start,
            end=self._start if unseen else self._recorder.mark(),
            sent=self._size if self._sends else None,
            ranks=2,
        )


def begin(
    recorder: Recorder, what: Literal["send", "receive"], tensor: torch.Tensor, peer: int, bucket: int
) -> Any:
    """Return a message to or from a rank on its way; has `wait()`. It is noted where the recorder keeps
    anything, and it is not a stream of a GPU."""
    act = dist.isend if what == "send" else dist.irecv
    if not recorder.active or tensor.is_cuda:
        return act(tensor, peer)
    return Message(recorder, partial(act, tensor, peer), bucket=bucket, tensor=tensor, sends=what == "send")
