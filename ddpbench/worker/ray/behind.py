"""`python -m ddpbench.worker.ray.behind RUN_DIR ...`: what Ray starts for a rank, and takes for Python.

Ray does not tell how a worker's process ended. So this one becomes its parent and notes that, and ends whatever the
rank has left behind, as with any launcher.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from ddpbench.guard import supervised
from ddpbench.machine.launched import RANKS_VARIABLE
from ddpbench.records.heartbeat import note_end, noted_end, noted_pid, shared_page
from ddpbench.worker.starting import table_of


def main() -> None:
    """Runs Python with these arguments."""
    folder, *line = sys.argv[1:]
    supervised(Path(folder), partial(_become, line), _note)


def _become(line: list[str]) -> int:
    os.execv(sys.executable, [sys.executable, "-P", *line])


def _note(pid: int, code: int) -> None:
    """Notes how a rank's process ended, unless the rank has told that itself: then it was Ray that ended it."""
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
