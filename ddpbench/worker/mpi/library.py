"""Loads the installed MPI library through mpi4py, and starts MPI with the help of one of torch's stores."""

from __future__ import annotations

import ctypes
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ddpbench.errors import MachineError
from ddpbench.worker.mpi import pmi

INSTALL = 'pip install "ddpbench[mpi]"'
_SEGMENTS = "/dev/shm/mpich_shm_"


@cache
def load() -> Any:
    """Return mpi4py's module `MPI`. Importing the module loads the MPI library, but does not start MPI.

    Raises:
        MachineError: no MPI library is installed, or mpi4py cannot load it.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except ImportError as error:
        raise MachineError(
            f'backend = "mpi": mpi4py cannot be imported ({error}); {INSTALL} installs mpi4py and MPICH'
        ) from error
    except RuntimeError as error:  # mpi4py's error if it finds no library
        first = (str(error).splitlines() or ["no reason given"])[0]
        raise MachineError(
            f'backend = "mpi": mpi4py finds no MPI library ({first}); {INSTALL} installs MPICH'
        ) from error
    return MPI


def checked_version() -> str:
    """Return the MPI library's name and version, such as `MPICH 5.0.2`.

    Raises:
        MachineError: no MPI library is installed, or it is Open MPI, which does not speak the protocol PMI-1.
    """
    name, numbers = load().get_vendor()
    version = f"{name} {'.'.join(map(str, numbers))}"
    if name == "Open MPI":
        raise MachineError(
            f'backend = "mpi": mpi4py has loaded {version}, which speaks PMIx with its launcher. ddpbench speaks '
            f"only PMI-1, as MPICH and Intel MPI do. {INSTALL} installs MPICH; with both installed, "
            "MPI4PY_MPIABI=mpich chooses MPICH"
        )
    return version


@cache
def start(store: pmi.Store, rank: int, size: int) -> Any:
    """Start MPI in this process and return the communicator of all ranks. Later calls return the same object.

    Raises:
        MachineError: no MPI library is installed, it allows no calls from several threads, or its world is not `size`
            ranks.
    """
    mpi, version = load(), checked_version()
    _confine()
    store.set(f"pmi/node/{rank}", os.environ.get("DDPBENCH_NODE") or _memory())
    if rank == 0:
        _forget_strays()
        store.set("pmi/world", secrets.token_hex(8))  # MPICH names its shared memory by the world's name
    kept = pmi.serve(
        store,
        rank=rank,
        size=size,
        world=store.get("pmi/world").decode(),
        nodes=lambda: _nodes(store, size),
    )
    _KEPT.append(kept)
    provided = ctypes.c_int()
    # Called by ctypes, which lets the thread that answers run meanwhile; mpi4py's own call would block it.
    start_mpi = ctypes.CDLL(mpi.__file__).MPI_Init_thread
    failed = start_mpi(None, None, ctypes.c_int(int(mpi.THREAD_MULTIPLE)), ctypes.byref(provided))
    world = mpi.COMM_WORLD
    if failed or provided.value < mpi.THREAD_MULTIPLE:
        raise MachineError(
            f'backend = "mpi": {version} does not allow calls from several threads, which DDP needs; {INSTALL} '
            "installs an MPI that does"
        )
    if (world.rank, world.size) != (rank, size):
        raise MachineError(
            f'backend = "mpi": {version} started with {world.size} rank{"s" if world.size != 1 else ""} instead '
            f"of {size}, because it does not speak PMI-1, as MPICH and Intel MPI do. {INSTALL} installs MPICH; "
            "with several MPI libraries installed, MPI4PY_MPIABI=mpich chooses MPICH"
        )
    world.Set_errhandler(mpi.ERRORS_RETURN)
    world.Barrier()
    _forget_segments()
    return world


def _confine() -> None:
    """Restrict UCX, which may carry MPI's messages, to the emulated links or this machine's loopback."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if "DDPBENCH_NODE" in os.environ:  # emulated nodes share this machine's memory, but must not use it
        os.environ |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface}
    elif interface == "lo":  # by default, UCX would listen on every other interface too
        os.environ.setdefault("UCX_NET_DEVICES", interface)


_KEPT: list[Any] = []
"""Sockets that MPI writes to. They must stay open until this process ends."""


def _memory() -> str:
    """Return a text that is equal on all ranks that share memory: the boot ID and /dev/shm's device."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        return f"{boot}/{Path('/dev/shm').stat().st_dev}"
    except OSError:
        return f"{boot}/{os.getpid()}"


def _nodes(store: pmi.Store, size: int) -> Sequence[str]:
    return [store.get(f"pmi/node/{rank}").decode() for rank in range(size)]


def _forget_segments() -> None:
    """Unlink MPI's shared memory, so that it does not outlive killed ranks; all ranks must have mapped it."""
    for name in _mapped(Path("/proc/self")):
        with suppress(OSError):
            Path(name).unlink()


STRAY_S = 60
"""Age in seconds above which MPI's shared memory is removed if no process has mapped it.

Ranks that were killed while MPI started leave such memory behind.
"""


def _forget_strays() -> None:
    old = time.time() - STRAY_S
    strays = set()
    for path in Path(_SEGMENTS).parent.glob(f"{Path(_SEGMENTS).name}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < old:
                strays.add(str(path))
    if not strays:
        return
    for process in Path("/proc").glob("[0-9]*"):
        strays -= _mapped(process)
    for name in strays:
        with suppress(OSError):
            Path(name).unlink()


def _mapped(process: Path) -> set[str]:
    """Return the paths of MPI's shared memory in `process`, a folder of /proc.

    Empty if the process has ended or belongs to another user.
    """
    try:
        lines = (process / "maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {name for line in lines if (name := line.split(maxsplit=5)[-1]).startswith(_SEGMENTS)}
