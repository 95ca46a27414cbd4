"""Checks of limits: shared memory, open files, locked memory, processes, disks."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ddpbench.launch.doctor.finding import CheckResult, note, ok, problem
from ddpbench.launch.doctor.host import Host
from ddpbench.text_safety import command
from ddpbench.units import format_bytes

SHARED_MEMORY_BYTES = 2**30
"""Free space below which a note is reported, bytes. Docker's default of 64 MiB is full after a few batches."""
FILES_BESIDE = 256
"""Files that a rank opens besides its sockets, with some margin."""
SOCKETS_A_PEER = 4
"""Sockets between two ranks. They share two gloo groups, and each group has up to one socket per direction."""
THREADS_A_RANK = 64
"""Threads per rank, for computation, gloo, nccl and loader workers."""
DISK_BYTES = 2**30


def shared_memory(host: Host) -> Iterator[CheckResult]:
    """Report the size of /dev/shm. Loader workers pass batches through it, and nccl passes data between processes."""
    path = host.dev_root / "shm"
    try:
        disk = host.disk(path)
    except OSError:
        yield note(
            "/dev/shm",
            "not there",
            "loader workers and nccl need it: mount a tmpfs there, or keep loader_workers = 0 on the CPU",
        )
        return
    found = f"{format_bytes(disk.free)} of {format_bytes(disk.total)} free"
    if disk.free < SHARED_MEMORY_BYTES:
        yield note(
            "/dev/shm",
            found,
            "when it is full, loader workers end with a bus error and nccl cannot start. Use docker "
            "run --shm-size=8g, or sudo mount -o remount,size=8g /dev/shm; loader_workers = 0 does not "
            "need it",
        )
    else:
        yield ok("/dev/shm", found)


def _ranks(host: Host) -> int:
    hardware = host.hardware()
    return max(len(hardware.gpu_addresses), hardware.devices(gpus=0).cores)


def open_files(host: Host) -> Iterator[CheckResult]:
    """Report how many files and sockets a rank may open."""
    soft, hard = host.limit(resource.RLIMIT_NOFILE)
    needed = FILES_BESIDE + SOCKETS_A_PEER * _ranks(host)
    found = f"{_shown(soft)} (may be raised to {_shown(hard)})" if soft != hard else _shown(soft)
    if soft != resource.RLIM_INFINITY and soft < needed:
        yield note(
            "open files", found, f"ranks may need about {needed}: raise it with ulimit -n {max(needed, 4096)}"
        )
    else:
        yield ok("open files", found)


def locked_memory(host: Host) -> Iterator[CheckResult]:
    """Report how much memory a process may lock, because nccl locks its buffers for InfiniBand."""
    soft, _ = host.limit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield ok("locked memory", "unlimited")
    elif host.names(host.sys_root / "class/infiniband"):
        yield problem(
            "locked memory",
            f"{format_bytes(soft)}; nccl locks its buffers in memory for InfiniBand, which is present",
            "raise it to unlimited: ulimit -l unlimited now, /etc/security/limits.conf permanently, "
            "docker run --ulimit memlock=-1 in containers, or the unit of Slurm's daemon",
        )
    else:
        yield ok(
            "locked memory", f"{format_bytes(soft)}; this matters only with InfiniBand, which is not present"
        )


def processes(host: Host) -> Iterator[CheckResult]:
    """Report how many processes and threads may be started."""
    soft, _ = host.limit(resource.RLIMIT_NPROC)
    limits = [] if soft == resource.RLIM_INFINITY else [soft]
    limits += host.group_numbers("pids", "pids.max", "pids.max")
    needed = THREADS_A_RANK * _ranks(host)
    if not limits:
        yield ok("processes", "unlimited")
    elif min(limits) < needed:
        yield note(
            "processes",
            f"{min(limits)} with their threads",
            (
                f"ranks may need about {needed}: raise ulimit -u, or the control group's pids.max (docker run "
                "--pids-limit)"
            ),
        )
    else:
        yield ok("processes", f"{min(limits)} with their threads")


def disks(host: Host) -> Iterator[CheckResult]:
    """Report the free space for run directories and for temporary files."""
    reports = host.folder / "reports"
    yield from _disk(
        host, "reports", reports if reports.is_dir() else host.folder, "write elsewhere with --out DIR"
    )
    temporary = host.env.get("TMPDIR")
    folder = Path(temporary) if temporary else Path(tempfile.gettempdir())
    if temporary and not folder.is_dir():
        yield note(
            "TMPDIR",
            f"{temporary} is not a folder, so programs use others",
            f"{command('mkdir', '-p', temporary)}, or unset it",
        )
        return
    yield from _disk(host, "temporary", folder, "set TMPDIR to a folder with room that you can write to")


def _disk(host: Host, subject: str, folder: Path, elsewhere: str) -> Iterator[CheckResult]:
    if not host.writable(folder):
        yield problem(subject, f"{folder} cannot be written to", elsewhere)
        return
    try:
        free = host.disk(folder).free
    except OSError as error:
        yield note(subject, f"{folder}: {error.strerror or error}", elsewhere)
        return
    found = f"{format_bytes(free)} free in {folder}"
    if free < DISK_BYTES:
        yield note(
            subject, found, f"free some space, because a sweep stops when the disk is full; or {elsewhere}"
        )
    else:
        yield ok(subject, found)


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
