"""Says which MPI is here, for processes that must not load it: `python -m ddpbench.worker.mpi`."""

from __future__ import annotations

import sys

from ddpbench.errors import MachineError
from ddpbench.worker.mpi.library import checked_version


def main() -> int:
    """Prints the library's version; where there is none that can be used, a sentence, and returns 1."""
    try:
        print(checked_version())  # noqa: T201
    except MachineError as error:
        print(error)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
