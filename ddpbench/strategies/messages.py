"""Point-to-point messages that can be recorded on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist

from ddpbench.measure.recorder import Recorder

UNSEEN_NS = 50_000
"""Longest wait (ns) from which the sender concludes that the send had ended before the wait, at an unknown time."""


class Message:
    """A message to or from another rank, recorded when it ends.

    Calling the object begins the message, as `isend` in torch. The receiver's record ends with the tensor's arrival. A
    sender's record has length 0, and only the receiver's is used, unless the sender has to wait for the end.
    """

    # This code is kept short, since it adds to the step's time, and a pipeline has many messages in each step.
    __slots__ = ("_act", "_bucket", "_own", "_recorder", "_start", "_work")

    def __init__(
        self, recorder: Recorder, act: Callable[..., Any], own: tuple[Any, ...], *, bucket: int
    ) -> None:
        """Prepare a message without beginning it.

        `act` is `dist.isend` or `dist.irecv`, and `own` has its arguments, the tensor first. `bucket` identifies the
        message within the step on both sides.
        """
        self._recorder, self._act, self._own, self._bucket = recorder, act, own, bucket

    def __call__(self, *_: Any, **__: Any) -> Message:
        """Begin the message; arguments from torch are ignored."""
        self._start = self._recorder.mark()
        self._work = self._act(*self._own)
        return self

    def wait(self) -> None:
        """Wait for the message's end, like `torch.distributed.Work.wait`, and record the transfer."""
        recorder, start = self._recorder, self._start
        before = recorder.mark()
        self._work.wait()
        end = recorder.mark()
        size, sends = self._own[0].nbytes, self._act is dist.isend
        recorder.add_transfer(
            bucket=self._bucket,
            op="send",
            size=size,
            start=start,
            end=start if sends and end - before <= UNSEEN_NS else end,
            sent=size if sends else None,
            ranks=2,
        )


def begin(
    recorder: Recorder, what: Literal["send", "receive"], tensor: torch.Tensor, peer: int, bucket: int
) -> Any:
    """Begin to send a tensor to rank `peer` or to receive one from it. Return an object with `wait()`.

    The transfer is recorded if the recorder is active and the tensor is not on a GPU.
    """
    act = dist.isend if what == "send" else dist.irecv
    if not recorder.active or tensor.is_cuda:
        return act(tensor, peer)
    return Message(recorder, act, (tensor, peer), bucket=bucket)()
