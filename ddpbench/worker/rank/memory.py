"""The most memory that a rank has used, either allocated on its GPU or resident on the CPU."""

from __future__ import annotations

import resource
from pathlib import Path

import torch


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
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
