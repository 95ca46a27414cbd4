"""Messages from one rank to another, noted on both sides. Imports torch at once, so only replicas import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist

from ddpbench.measure.recorder import Recorder

UNSEEN_NS = 50_000
"""A send whose wait takes no longer than this, in seconds, had already ended unnoticed."""


class Message:
    """A message to or from another rank, noted when it is over as this rank's part in a transfer of two ranks.

    `start` begins it, as does calling it, which torch does with what it takes for `isend`. The receiver's part ends
    when it has the tensor. Torch reports the end of a send only to a caller that waits: where the sender does not
    have to wait, its part ends as it begins, and the transfer is the receiver's alone.
    """

    # Little is done here: it all counts in the step's time, and a pipeline has many messages in each step.
    __slots__ = ("_act", "_bucket", "_own", "_recorder", "_start", "_work")

    def __init__(
        self, recorder: Recorder, act: Callable[..., Any], own: tuple[Any, ...], *, bucket: int
    ) -> None:
        """`act` begins it: `dist.isend` or `dist.irecv`, called with the arguments `own`, of which the tensor is first.

        `bucket` distinguishes it from other messages of the step, and is the same on both sides.
        """
        self._recorder, self._act, self._own, self._bucket = recorder, act, own, bucket

    def __call__(self, *_: Any, **__: Any) -> Message:
        """Begin it with its own tensor, peer, group and tag, regardless of what torch calls it with."""
        self._start = self._recorder.mark()
        self._work = self._act(*self._own)
        return self

    def wait(self) -> None:
        """Wait for its end, as `torch.distributed.Work.wait` does."""
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
    """Begin to send a tensor to a rank or receive it from there; return an object with `wait()`. It is noted if the
    recorder is active, unless it runs on a stream of a GPU."""
    act = dist.isend if what == "send" else dist.irecv
    if not recorder.active or tensor.is_cuda:
        return act(tensor, peer)
    return Message(recorder, act, (tensor, peer), bucket=bucket)()
