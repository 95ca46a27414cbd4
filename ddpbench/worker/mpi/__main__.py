"""Print which MPI library is installed, for processes that must not load it: `python -m ddpbench.worker.mpi`."""

from __future__ import annotations

import sys

from ddpbench.errors import MachineError
from ddpbench.worker.mpi.library import checked_version


def main() -> int:
    """Print the MPI library's version and return 0. If none is usable, print the reason and return 1."""
    try:
        print(checked_version())  # noqa: T201
    except MachineError as error:
        print(error)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
