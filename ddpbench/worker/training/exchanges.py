"""Detects exchanges between ranks in a user's code: collectives and messages, but not queries of rank or size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed import distributed_c10d

_EXCHANGE = (
    "all",
    "_allgather",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "_reduce_scatter",
    "scatter",
    "send",
)
"""Prefixes of the process group methods that exchange values."""
_WAIT = ("barrier", "monitored_barrier")
"""Methods that wait for the other ranks but exchange no values."""


@dataclass(slots=True)
class Exchanges:
    """Exchanges between ranks that `noticing_exchanges` has seen."""

    largest: int = 0
    """Number of ranks in the largest group that exchanged values, or 0 if no group did."""
    waited: bool = False
    """True if a barrier was called."""
    _waits: dict[str, int] = field(default_factory=dict)
    """The number by which barriers have advanced each group's sequence number, by the group's name."""

    @property
    def found(self) -> bool:
        """True if a value may have come from a different rank."""
        return self.largest > 1


@contextmanager
def noticing_exchanges() -> Iterator[Exchanges]:
    """Record in the yielded object whether the enclosed code, including its threads, uses a process group.

    Calls from Python are intercepted. Calls from compiled code are seen in the groups' sequence numbers.
    """
    seen = Exchanges()
    before = {group.group_name: (group, _sequence(group)) for group in _groups()}
    originals = {
        name: method for name, method in vars(ProcessGroup).items() if name.startswith((*_EXCHANGE, *_WAIT))
    }
    for name, method in originals.items():
        setattr(ProcessGroup, name, _noted(method, seen, waits=name in _WAIT))
    try:
        yield seen
    finally:
        for name, method in originals.items():
            setattr(ProcessGroup, name, method)
        for name, (group, number) in before.items():
            if _sequence(group) - number > seen._waits.get(name, 0):
                seen.largest = max(seen.largest, group.size())


@contextmanager
def alone(device: torch.device, *, says_so: bool) -> Iterator[None]:
    """Replace the default process group by a group of this rank alone. All ranks must enter the context together.

    If `says_so`, the environment variables `RANK` and `WORLD_SIZE` are also set to 0 and 1 inside the context.
    """
    default = distributed_c10d._get_default_group()
    backend = "nccl" if device.type == "cuda" else "gloo"
    one = dist.new_group([default.rank()], backend=backend, use_local_synchronization=True)
    kept = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    distributed_c10d._update_default_pg(one)
    if says_so:
        os.environ.update(RANK="0", WORLD_SIZE="1")
    try:
        yield
    finally:
        distributed_c10d._update_default_pg(default)
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        dist.destroy_process_group(one)


def _noted(method: Any, seen: Exchanges, *, waits: bool) -> Any:
    def called(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        before = _sequence(group)
        result = method.__get__(group, type(group))(*args, **kwargs)
        if waits:
            seen.waited = True
            name = group.group_name
            seen._waits[name] = seen._waits.get(name, 0) + _sequence(group) - before
        else:
            seen.largest = max(seen.largest, group.size())
        return result

    return called


def _groups() -> list[ProcessGroup]:
    return list(distributed_c10d._world.pg_map) if dist.is_initialized() else []


def _sequence(group: ProcessGroup) -> int:
    """Return how many exchanges a group has begun; 0 if its backend does not count them."""
    counting: Any = group  # torch's stubs lack the method
    with suppress(RuntimeError):
        return int(counting._get_sequence_number_for_group())
    return 0
