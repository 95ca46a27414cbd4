"""The process that Ray starts for a rank, instead of Python: `python -m ddpbench.worker.ray.behind ...`.

Ray doesn't report how a worker's process ended, so this process becomes the rank's parent and records it. It also ends
all processes that the rank has left behind.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ddpbench.guard import adopt_orphans, die_with_parent, end_descendants
from ddpbench.records.heartbeat import note_end, noted_end, noted_pid, shared_page
from ddpbench.runtime.launched import RANKS_VARIABLE
from ddpbench.worker.starting import table_of


def main() -> None:
    """Run Python with this process's arguments as a child, and exit with the child's code."""
    # Once a worker's socket is closed, Ray ends its process group, which includes this process: note the end first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    adopt_orphans()
    own = os.getpid()
    rank = os.fork()
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(own)
        os.execv(sys.executable, [sys.executable, "-P", *sys.argv[1:]])
    _, status = os.waitpid(rank, 0)
    code = os.waitstatus_to_exitcode(status)
    _note(rank, code)
    end_descendants()
    os._exit(code if code >= 0 else 128 - code)  # a signal as shells report it


def _note(pid: int, code: int) -> None:
    table = table_of(os.environ.get(RANKS_VARIABLE, ""))
    if table is None:
        return
    page = shared_page(Path(table["page"]))
    words = memoryview(page).cast("Q")
    for rank in range(len(table["ranks"])):
        if noted_pid(words, rank) == pid and noted_end(words, rank) is None:
            note_end(page, rank, code)


if __name__ == "__main__":
    main()
