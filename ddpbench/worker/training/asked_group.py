"""A process group of one rank, formed only if a user's code asks for one and there is none."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d

from ddpbench.causes import is_users

_ASKED = "_get_default_group"
"""Name of torch's function that collectives, `get_rank` and `get_world_size` call if they get no `group`."""
_OF_WORLD, _READ = type(distributed_c10d.GroupMember), "WORLD"
"""A class of torch, and the name of its property with the default group. `is_initialized` reads that property."""
_is_users = cache(is_users)


@dataclass(slots=True)
class Asked:
    """Result of `formed_when_asked`: whether the enclosed code asked for the default process group."""

    found: bool = False
    """True once code needed the group, or once a user's code checked whether there is one."""


@contextmanager
def formed_when_asked(device: torch.device) -> Iterator[Asked]:
    """Form a process group of this rank alone as soon as the enclosed code asks for a group and there is none.

    A user's call of `is_initialized`, even through a library, counts as asking: the code would exchange values. For
    torch's or ddpbench's own calls, it is False until a group is formed.
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
    world: Any = vars(_OF_WORLD)[_READ]
    asking = distributed_c10d.is_initialized.__code__
    within = False
    lock = threading.RLock()  # replicas in threads may ask at the same time

    def call() -> None:
        nonlocal within
        with lock:
            if not within:
                within = True  # forming a group asks for one too
                try:
                    before()
                finally:
                    within = False

    def group() -> Any:
        call()
        return original()

    def read(of: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code is asking and _is_asked_by_user(frame.f_back):
            call()
        return world.fget(of)

    setattr(distributed_c10d, _ASKED, group)
    setattr(_OF_WORLD, _READ, property(read, world.fset))  # user code may hold is_initialized
    try:
        yield
    finally:
        setattr(distributed_c10d, _ASKED, original)
        setattr(_OF_WORLD, _READ, world)


def _is_asked_by_user(frame: FrameType | None) -> bool:
    if frame is not None and _package_of(frame) == "torch":  # such as SyncBatchNorm
        return False
    while frame is not None and _package_of(frame) != "ddpbench":
        if _is_users(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@contextmanager
def first_of_two() -> Iterator[None]:
    """Replace the default process group by one in which this process is rank 0 of two and rank 1 is missing.

    Collectives return immediately without output. The context's end destroys this group, and does not restore the
    earlier one.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    kept = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    dist.destroy_process_group()
    try:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        os.environ.update(RANK="0", WORLD_SIZE="2")
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
