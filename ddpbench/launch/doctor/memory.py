"""Checks of memory: how much of it ranks can use, and whether the system swaps."""

from __future__ import annotations

from collections.abc import Iterator

from ddpbench.launch.doctor.finding import CheckResult, note, ok
from ddpbench.launch.doctor.host import Host
from ddpbench.units import format_bytes

RANK_BYTES = 2**29
"""Rough memory of a rank's process besides its model, bytes."""
SWAP_IN_USE_BYTES = 2**26


def memory(host: Host) -> Iterator[CheckResult]:
    """Report the memory that is available to ranks, within the control group's limit."""
    system = _meminfo(host)
    limits = host.group_numbers("memory", "memory.max", "memory.limit_in_bytes")
    if "MemAvailable" not in system:
        yield note("memory", "not readable in /proc/meminfo", "mount /proc, or see for yourself with free -h")
        return
    total, available = system["MemTotal"], system["MemAvailable"]
    found = f"{format_bytes(available)} of {format_bytes(total)} available"
    limit = min(limits, default=total)
    if limit < total:  # control groups v1 write a huge number for "unlimited"
        used = max(host.group_numbers("memory", "memory.current", "memory.usage_in_bytes"), default=0)
        found += f"; a control group allows {format_bytes(limit)}, of which {format_bytes(used)} are used"
        available = min(available, max(0, limit - used))
    ranks = host.hardware().devices(gpus=0).cores
    if available < ranks * RANK_BYTES:
        yield note(
            "memory",
            found,
            f"one rank per core needs about {format_bytes(ranks * RANK_BYTES)} in total, without "
            "models: free some memory, raise the limit, or use fewer ranks and small models",
        )
    else:
        yield ok("memory", found)


def swap(host: Host) -> Iterator[CheckResult]:
    """Report whether anything has been swapped out."""
    system = _meminfo(host)
    total = system.get("SwapTotal", 0)
    used = total - system.get("SwapFree", 0)
    if not total:
        yield ok("swap", "none")
    elif used > SWAP_IN_USE_BYTES:
        yield note(
            "swap",
            f"{format_bytes(used)} of {format_bytes(total)} in use",
            "memory is or was short, and a swapped-out rank waits for the disk: free memory, then sudo "
            "swapoff -a && sudo swapon -a",
        )
    else:
        yield ok("swap", f"{format_bytes(total)}, not in use")


def _meminfo(host: Host) -> dict[str, int]:
    entries: dict[str, int] = {}
    for line in host.read(host.proc_root / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            entries[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return entries
