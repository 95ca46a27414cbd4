"""The process groups of a launch: one for the strategy, and a separate one through which ranks agree between steps."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from ddpbench.measure.blocks import AloneControl, Control
from ddpbench.spec import OF_FRAMEWORKS, Case
from ddpbench.worker.mpi import process_group
from ddpbench.worker.place import JobPlace
from ddpbench.worker.variables import slots_store

_TIMEOUT = timedelta(
    hours=24
)  # long, because the watchdog ends hangs and names the rank, which a timeout cannot


class GroupControl:
    """Agreement between ranks over a gloo group that is used for nothing else."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int) -> None:
        self.group = group
        self._rank = rank
        self._value = torch.zeros(1, dtype=torch.int64)

    def agree(self, value: int) -> int:
        # Rank 0's value is sent as a sum in which the others' terms are 0. Unlike in a broadcast, no rank continues
        # before all have arrived.
        self._value[0] = value if self._rank == 0 else 0
        dist.all_reduce(self._value, group=self.group)
        return int(self._value.item())


def meet(case: Case, place: JobPlace, *, uses_backend: bool, device: torch.device) -> Control:
    """Form the process groups that this case needs, and return the `Control` through which ranks agree.

    If `uses_backend`, the default group has the case's backend, for the strategy alone. Otherwise it has gloo, and
    ranks agree through it.

    A default group that a launcher such as Ray has formed is kept. A group that the user's code formed during import is
    kept if it fits a case without recovery.

    Raises:
        RuntimeError: the group that the launcher formed has other ranks or a different backend.
    """
    if not uses_backend and place.processes == 1:
        return AloneControl()
    backend = case.backend if uses_backend else "gloo"
    if backend == "mpi":
        process_group.register()
        backend = process_group.NAME
    if case.launcher in OF_FRAMEWORKS and dist.is_initialized():
        _check_formed(backend, place)
        return _control(place, uses_backend=uses_backend, timeout=_TIMEOUT)
    if dist.is_initialized():  # by the user's code, as a script under torchrun does
        if case.recovery == "off" and _found() == (backend, place.rank, place.processes):
            return _control(place, uses_backend=uses_backend, timeout=_TIMEOUT)
        dist.destroy_process_group()
    store = _store(place)
    # With recovery, ranks must notice by themselves that one of them is stopped, as in users' scripts. The time
    # that takes is measured.
    timeout = _TIMEOUT if case.recovery == "off" else timedelta(seconds=case.collective_timeout)
    dist.init_process_group(
        backend,
        store=store,
        init_method=None if store else "env://",
        rank=place.rank,
        world_size=place.processes,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )
    return _control(place, uses_backend=uses_backend, timeout=timeout)


def _control(place: JobPlace, *, uses_backend: bool, timeout: timedelta) -> Control:
    if place.processes == 1:
        return AloneControl()
    group = dist.new_group(backend="gloo", timeout=timeout) if uses_backend else None
    return GroupControl(group, place.rank)


def _found() -> tuple[str, int, int]:
    return dist.get_backend(), dist.get_rank(), dist.get_world_size()


def _check_formed(backend: str, place: JobPlace) -> None:
    """Check the launcher's default group.

    Raises:
        RuntimeError: the group has a different backend, rank or size.
    """
    formed = _found()
    wanted = (backend, place.rank, place.processes)
    if formed != wanted:
        there, needed = (f"{name}, rank {rank} of {size}" for name, rank, size in (formed, wanted))
        raise RuntimeError(
            f"the launcher formed the wrong process group for this case: {there}, instead of {needed}"
        )


def _store(place: JobPlace) -> Store | None:
    """Return the store in which ranks meet; None for torch's usual store at MASTER_ADDR.

    A fork server's ranks meet in a file; slots' ranks in the slots' store, under a prefix per launch.
    """
    if file := os.environ.get("DDPBENCH_RENDEZVOUS"):
        return FileStore(os.fsencode(file), place.processes)  # type: ignore[arg-type]  # not every path is UTF-8
    if prefix := os.environ.get("DDPBENCH_STORE"):
        store = TCPStore(*slots_store(), is_master=False, wait_for_workers=False)
        return PrefixStore(prefix, store)
    return HashStore() if place.processes == 1 else None


def leave(control: Control, *, borrowed: bool = False) -> None:
    """Wait for all ranks, then destroy the process groups. Without this, gloo may abort the process.

    A `borrowed` default group stays for the launcher that formed it.
    """
    control.agree(0)
    if borrowed:
        if (group := getattr(control, "group", None)) is not None:
            dist.destroy_process_group(group)
    elif dist.is_initialized():
        dist.destroy_process_group()
