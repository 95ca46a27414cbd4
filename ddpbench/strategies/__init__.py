"""The strategies: one file each, one line each in this table. Importing it imports no torch."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from ddpbench.strategies.base import PROMISES, Job, NoOptions, Promise, Replica, Strategy

TABLE: dict[str, str] = {
    "single": "ddpbench.strategies.single:Single",
    "independent": "ddpbench.strategies.independent:Independent",
    "data_parallel": "ddpbench.strategies.data_parallel:DataParallel",
    "ddp": "ddpbench.strategies.ddp:Ddp",
    "zero1": "ddpbench.strategies.zero1:Zero1",
    "fsdp": "ddpbench.strategies.fsdp:Fsdp",
    "post_local_sgd": "ddpbench.strategies.post_local_sgd:PostLocalSgd",
    "master": "ddpbench.strategies.master:Master",
    "async_server": "ddpbench.strategies.async_server:AsyncServer",
    "pipeline": "ddpbench.strategies.pipeline:Pipeline",
    "branches": "ddpbench.strategies.branches:Branches",
}
"""Name -> `module:Class`, in the order of lists and legends."""


@cache
def load_strategy(name: str) -> Strategy[Any]:
    """The strategy of that name.

    Raises:
        KeyError: there is none.
    """
    module, _, attribute = TABLE[name].partition(":")
    strategy: Strategy[Any] = getattr(importlib.import_module(module), attribute)()
    return strategy


__all__ = [
    "PROMISES",
    "TABLE",
    "Job",
    "NoOptions",
    "Promise",
    "Replica",
    "Strategy",
    "load_strategy",
]
