"""Imported first by the process that forks a rank's loader workers: it dies with the rank, and its workers with it.

Otherwise the two wait for each other: the server for its workers to disconnect, and the workers for the server.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddpbench.guard import die_with_parent
from ddpbench.user_files import search_shared_folders

PARENT = "DDPBENCH_LOADERS_OF"
"""The variable that holds the rank's process id, for the processes that the rank starts."""
SHARED = "DDPBENCH_LOADERS_FIND"
"""The variable that says where the rank finds modules in folders that others can write to; see `user_files`."""


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
