"""The most memory that a rank has used, either allocated on its GPU or resident on the CPU."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
"""The kernel's file on this process; its name there may be any bytes, and cut off within a character."""


def reset_peak_memory(device: str) -> None:
    """Reset the peak of memory use, so that memory of the start (such as an unsharded model) doesn't count."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return  # the peak then includes memory needed only at the start


def peak_memory(device: str) -> int | None:
    """Return the highest memory use so far (bytes), allocated on the GPU or resident on the CPU."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    try:
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
