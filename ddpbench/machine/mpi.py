"""Find the MPI library that ranks would use here, and whether torch has UCC.

Separate processes do this, because loading an MPI library may end the process that loads it.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from ddpbench.errors import MachineError
from ddpbench.helper_process import child_environment

_TIMEOUT_S = 60


@cache
def mpi_version() -> str:
    """Return the name and version of the MPI library, such as `MPICH 5.0.2`.

    Raises:
        MachineError: ranks can use no MPI library; the message says what to do.
    """
    try:
        found = subprocess.run(
            [sys.executable, "-P", "-m", "ddpbench.worker.mpi"],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            env=child_environment(),
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f'backend = "mpi": the MPI library here did not load within {_TIMEOUT_S} s; try: python -c "from mpi4py '
            'import MPI"'
        ) from error
    said = found.stdout.strip()
    if found.returncode == 0 and said:
        return said.splitlines()[-1]
    why = said or (found.stderr.strip().splitlines() or [f"it ended with {found.returncode}"])[-1]
    raise MachineError(why if why.startswith("backend") else f'backend = "mpi": {why}')


@cache
def has_ucc() -> bool:
    """Return whether torch was built with UCC."""
    line = "import torch.distributed as d; raise SystemExit(not (d.is_available() and d.is_ucc_available()))"
    try:
        found = subprocess.run(
            [sys.executable, "-P", "-c", line],
            env=child_environment(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return found.returncode == 0
