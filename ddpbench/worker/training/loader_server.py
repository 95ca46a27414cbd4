"""Ensure that when a rank dies, the process that forks its loader workers dies too, along with the workers.

Otherwise that process, which imports this module first, and the workers would wait for each other.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddpbench.guard import die_with_parent
from ddpbench.user_files import search_shared_folders

PARENT = "DDPBENCH_LOADERS_OF"
"""Environment variable with the rank's process id, set for processes that the rank starts."""
SHARED = "DDPBENCH_LOADERS_FIND"
"""Environment variable with the writable shared folders in which the rank finds modules; see `user_files`."""


def _die_with_rank() -> None:
    rank = int(os.environ.get(PARENT, "0"))
    if rank and rank == os.getppid():
        die_with_parent(rank)
        own = os.getpid()
        os.register_at_fork(after_in_child=lambda: die_with_parent(own))
    elif rank and not Path(f"/proc/{rank}").exists():  # the rank was killed while this process started
        os._exit(1)


_die_with_rank()
if os.environ.get(SHARED):
    search_shared_folders(os.environ[SHARED])
