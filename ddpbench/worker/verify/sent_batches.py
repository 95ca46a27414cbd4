"""Exchange pickled batches between ranks; a batch is unpickled only if it certainly comes from a rank of the launch.

Every message is authenticated (HMAC-SHA256) with the launch's secret, over random numbers from all ranks, the message's
number and its sender. So an outsider cannot forge, replay or reassign a message.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import pickle
import secrets
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.serialization import default_restore_location

from ddpbench.causes import text_of
from ddpbench.collectives.exchange import foreign, gather_bytes
from ddpbench.records.job_key import SECRET_VARIABLE
from ddpbench.strategies.base import CannotTrainError
from ddpbench.text_safety import on_one_line

_RANDOM_BYTES = 16
_MAC_BYTES = 32
_LONGEST = 1 << 10
"""Largest length of a rank's sentence on a problem, in characters."""
_NO_SECRET = (
    "for the proof its ranks send each other pickled batches, but have no key to authenticate them: start the "
    "ranks by ddpbench sweep, or as ddpbench plan prints, with DDPBENCH_KEY or a job.key that only you can read "
    "on every node"
)


def gather_batches(
    own: Any, group: dist.ProcessGroup | None, device: torch.device | None = None
) -> list[Any]:
    """Return every rank's batch, in the order of ranks. All ranks must call this function together.

    Tensors keep their strides. Tensors that were on the sender's CPU arrive on the CPU, all others on `device`.

    Raises:
        CannotTrainError: a rank has no secret, or a batch cannot be pickled or unpickled; raised on all ranks.
        ForeignMessageError: a message does not come from a rank of this launch.
    """
    exchange = _Exchange(group)
    data, problem = _pickled(own)
    exchange.agree(problem)
    sizes = exchange.gather(len(data).to_bytes(8, "little"), 8)
    found: list[Any] = []
    for rank, sent in enumerate(exchange.gather(data, max(int.from_bytes(size, "little") for size in sizes))):
        batch, why = (own, "") if rank == exchange.rank else _tried(partial(_unpickled, sent, device))
        found.append(batch)
        problem = problem or (why and f"rank {exchange.rank} cannot unpickle rank {rank}'s batches: {why}")
    exchange.agree(problem)
    return found


class _Exchange:
    """Exchanges authenticated bytes between ranks; forged and replayed messages are refused."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.rank = dist.get_rank(group)
        self._group, self._number = group, 0
        self._secret = os.environ.get(SECRET_VARIABLE, "").encode()
        own = secrets.token_bytes(_RANDOM_BYTES) if self._secret else b""
        drawn = [each.numpy().tobytes() for each in gather_bytes(own, _RANDOM_BYTES, group)]
        drawn[self.rank] = own  # what came back may have been changed by others
        if not all(drawn):
            raise CannotTrainError(_NO_SECRET)
        for rank, each in enumerate(drawn):
            if len(each) != _RANDOM_BYTES:
                raise foreign(rank, f"a random number of {len(each)} bytes")
        self._drawn = b"".join(drawn)

    def gather(self, own: bytes, most: int) -> list[bytes]:
        """Return every rank's bytes, at most `most` each. All ranks must call this method together.

        Raises:
            ForeignMessageError: a message is too long, or does not come from a rank of this launch.
        """
        self._number += 1
        sealed = self._mac(self.rank, own) + own
        sent = gather_bytes(sealed, _MAC_BYTES + most, self._group)
        return [
            own if rank == self.rank else self._opened(rank, each.numpy().tobytes())
            for rank, each in enumerate(sent)
        ]

    def agree(self, problem: str) -> None:
        """Raise the first rank's problem, if any, on all ranks. All ranks must call this method together.

        Raises:
            CannotTrainError: a rank has a problem.
        """
        problems = self.gather(problem[:_LONGEST].encode("utf-8", "replace"), 4 * _LONGEST)
        if first := next(filter(None, problems), b""):
            raise CannotTrainError(first.decode("utf-8", "replace"))

    def _opened(self, rank: int, message: bytes) -> bytes:
        if not hmac.compare_digest(message[:_MAC_BYTES], self._mac(rank, message[_MAC_BYTES:])):
            raise foreign(rank, "it lacks the launch's signature")
        return message[_MAC_BYTES:]

    def _mac(self, rank: int, content: bytes) -> bytes:
        found = hmac.new(self._secret, b"%s %d %d " % (self._drawn, self._number, rank), hashlib.sha256)
        found.update(content)
        return found.digest()


def _pickled(batch: Any) -> tuple[bytes, str]:
    """Return a batch pickled and `""`, or incomplete bytes and the reason."""
    seen: list[Any] = [None]

    class Noting(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            seen[0] = value  # the last one is the one that fails, if one does
            return NotImplemented

    data = io.BytesIO()
    module = SimpleNamespace(Pickler=Noting, __name__=pickle.__name__)
    protocol = pickle.HIGHEST_PROTOCOL
    _, why = _tried(lambda: torch.save(batch, data, pickle_module=module, pickle_protocol=protocol))
    kind = seen[0] if isinstance(seen[0], type) else type(seen[0])
    name = f"{kind.__module__}.{kind.__qualname__}"
    return data.getvalue(), why and f"its batches hold an object of {name}, which cannot be pickled: {why}"


def _unpickled(data: bytes, device: torch.device | None) -> Any:
    def placed(storage: Any, location: str) -> Any:
        there = location if location == "cpu" else str(device or "cpu")
        return default_restore_location(storage, there)  # type: ignore[no-untyped-call]

    return torch.load(io.BytesIO(data), map_location=placed, weights_only=False)


def _tried(act: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return act(), ""
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        return None, on_one_line(f"{type(error).__name__}: {text_of(error)}")
