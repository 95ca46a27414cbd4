"""Messages from one rank to another, noted on both sides. Imports torch at once, so only replicas import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist

from ddpbench.measure.recorder import Recorder

UNSEEN_NS = 50_000
"""A send that takes no longer than this to wait for was over before, unseen."""


class Message:
    """A message to or from another rank, noted as this rank's part in a transfer of two ranks once it is over.

    `start` puts it under way, or calling it, as torch does with what it takes for `isend`. The receiver's part ends
    when it has what it waited for. When a send was over, torch tells only one who waits: where that one does not have
    to, the sender's part ends as it begins, and the transfer is the receiver's alone.
    """

    # Little is done here: it is all in the step's time, and a pipeline has many messages in each.
    __slots__ = ("_act", "_bucket", "_own", "_recorder", "_start", "_work")

    def __init__(
        self, recorder: Recorder, act: Callable[..., Any], own: tuple[Any, ...], *, bucket: int
    ) -> None:
        """`act` hands it over: `dist.isend` or `dist.irecv`, called with `own`, of which the tensor is the first.

        `bucket` tells it from others of the step, alike on both sides.
        """
        self._recorder, self._act, self._own, self._bucket = recorder, act, own, bucket

    def __call__(self, *_: Any, **__: Any) -> Message:
        """Puts it under way with its own tensor, peer, group and tag, whatever torch calls it with."""
        self._start = self._recorder.mark()
        self._work = self._act(*self._own)
        return self

    def wait(self) -> None:
        """Waits for its end, as `torch.distributed.Work.wait` does."""
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
    """Return a message to or from a rank on its way; has `wait()`. It is noted where the recorder keeps
    anything, and it is not a stream of a GPU."""
    act = dist.isend if what == "send" else dist.irecv
    if not recorder.active or tensor.is_cuda:
        return act(tensor, peer)
    return Message(recorder, act, (tensor, peer), bucket=bucket)()
