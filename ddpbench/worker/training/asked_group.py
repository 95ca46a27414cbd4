"""The default process group of a single rank, formed if a user's loss asks for one and there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d

_ASKED = "_get_default_group"
"""Function that torch's collectives, `get_rank` and `get_world_size` call without a `group` argument."""


@dataclass(slots=True)
class Asked:
    """True once the default process group was asked for."""

    found: bool = False


@contextmanager
def formed_when_asked(device: torch.device) -> Iterator[Asked]:
    """Form a group of this rank alone as soon as the code run within asks for one and there is none.

    Code that checks for one by `is_initialized` finds none until then, and continues without.
    """
    asked = Asked()

    def before() -> None:
        if not dist.is_initialized():
            asked.found = True
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)

    with _calling(before):
        yield asked


@contextmanager
def _calling(before: Callable[[], None]) -> Iterator[None]:
    original: Callable[[], Any] = getattr(distributed_c10d, _ASKED)
    within = False
    lock = threading.RLock()  # replicas in threads ask at the same time

    def group() -> Any:
        nonlocal within
        with lock:
            if not within:
                within = True  # forming a group asks for it too
                try:
                    before()
                finally:
                    within = False
        return original()

    setattr(distributed_c10d, _ASKED, group)
    try:
        yield
    finally:
        setattr(distributed_c10d, _ASKED, original)
