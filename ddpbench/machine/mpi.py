"""Which MPI library ranks would use here. It is asked by a process of its own: loading one may end that process."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from ddpbench.errors import MachineError
from ddpbench.helper_process import child_environment

_TIMEOUT_S = 60


@cache
def mpi_version() -> str:
    """Return the library's name and version, such as `MPICH 5.0.2`.

    Raises:
        MachineError: there is none that ranks can use; its words say what to do.
    """
    try:
        found = subprocess.run(
            [sys.executable, "-P", "-m", "ddpbench.worker.mpi"],
            capture_output=True,
            text=True,
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
