"""Facts about this machine that only a process with torch can find out."""

from __future__ import annotations

import platform
from typing import Any

import torch
import torch.distributed as dist


def describe() -> dict[str, Any]:
    """Return torch's, Python's, CUDA's and NCCL's versions, the usable backends and the GPUs, as a JSON object."""
    gpus: list[dict[str, Any]] = []
    cuda = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if cuda else 0):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
                "pci": _pci_address(properties),
                # instances of one GPU may share its UUID
                "uuid": "" if "MIG" in properties.name else str(getattr(properties, "uuid", "")),
            }
        )
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda if cuda else None,
        "nccl": _nccl_version() if cuda else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "backends": [
            name
            for name, here in (
                ("gloo", dist.is_gloo_available()),
                ("nccl", dist.is_nccl_available() and cuda),
            )
            if here
        ],
        "gpus": gpus,
    }


def _nccl_version() -> str:
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]


def _pci_address(properties: Any) -> str | None:
    try:
        domain, bus, device = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    except AttributeError:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
