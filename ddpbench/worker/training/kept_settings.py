"""If a user's code changes settings of a rank's process that the experiment prescribes, restore and report them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ddpbench.machine.placement import early_env
from ddpbench.spec import Case
from ddpbench.units import counted


@contextmanager
def settings_kept(case: Case, on_change: Callable[[str], None]) -> Iterator[None]:
    """Run the enclosed user's code, then restore the thread count, cores and variables that the case prescribes.

    `on_change` is called with a sentence about each restored setting. Variables such as OMP_NUM_THREADS no longer
    affect this process. They are restored because loader workers inherit them.
    """
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    variables = {name: os.environ.get(name) for name in early_env(case)}
    try:
        yield
    finally:
        if (found := torch.get_num_threads()) != threads:
            torch.set_num_threads(threads)
            on_change(
                f"the class's code asks torch for {counted(found, 'thread')}: set back to threads_per_rank = "
                f"{case.threads_per_rank}, as the experiment says"
            )
        if (own := os.sched_getaffinity(0)) != cores:
            os.sched_setaffinity(0, cores)
            on_change(
                f"the class's code moves its process to {counted(len(own), 'core')} ({_few(own)}): put back on "
                f"{counted(len(cores), 'core')} of the rank ({_few(cores)})"
            )
        for name, asked in variables.items():
            if (value := os.environ.get(name)) == asked:
                continue
            if asked is None:
                del os.environ[name]
            else:
                os.environ[name] = asked
            how = f"sets {name} = {value}" if value is not None else f"removes {name}"
            on_change(f"the class's code {how}: put back to {'unset' if asked is None else asked}")


def _few(cores: set[int]) -> str:
    first = sorted(cores)[:4]
    return ", ".join(map(str, first)) + (", ..." if len(cores) > len(first) else "")
