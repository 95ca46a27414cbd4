"""The cores and GPUs that this process may use, read from the system without torch."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ddpbench.cpu_quota import cpu_quota, read_text
from ddpbench.errors import MachineError
from ddpbench.spec import Devices

_SYS = Path("/sys")
_PROC = Path("/proc")
_DEV = Path("/dev")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """The cores and GPUs on which ranks can be placed.

    `cores` has the usable logical cores, one per physical core first. `physical` is the number of physical cores in the
    CPU affinity, or the CPU quota if lower.
    """

    cores: tuple[int, ...]
    physical: int
    quota: float | None
    gpu_addresses: tuple[str, ...]
    cpu_model: str
    may_have_gpus: bool = False
    """True if there are signs of a GPU. Only torch can find out whether a GPU is usable."""

    def devices(self, gpus: int | None = None) -> Devices:
        """Return the devices from which the setting `auto` chooses.

        `gpus` is the number of GPUs that torch can use, if known.
        """
        count = len(self.gpu_addresses) if gpus is None else gpus
        return Devices(kind="cuda" if count else "cpu", gpus=count, cores=self.physical)


def read_hardware(sys_root: Path = _SYS, proc_root: Path = _PROC, dev_root: Path = _DEV) -> Hardware:
    """Return this process's cores and GPUs, from CPU affinity, CPU topology, control group quota and the NVIDIA driver.

    Raises:
        MachineError: this is not Linux.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise MachineError("ddpbench measures on Linux: it pins ranks to cores, which this system cannot do")
    gpus = _gpus(proc_root)
    usable = sorted(os.sched_getaffinity(0))
    first: list[int] = []
    siblings: list[int] = []
    seen: set[str] = set()
    for core in usable:
        path = sys_root / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        group = read_text(path) or str(core)
        (siblings if group in seen else first).append(core)
        seen.add(group)
    quota = cpu_quota(sys_root, proc_root)
    physical = len(first) if quota is None else max(1, min(len(first), int(quota)))
    return Hardware(
        cores=(*first, *siblings),
        physical=physical,
        quota=quota,
        gpu_addresses=gpus,
        cpu_model=_cpu_model(proc_root),
        may_have_gpus=bool(gpus) or _gpu_devices(dev_root),
    )


def _gpu_devices(dev_root: Path) -> bool:
    """Return whether GPUs have device files: containers and WSL may lack the driver's folder in /proc."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return False
    return (dev_root / "dxg").exists() or any(dev_root.glob("nvidia[0-9]*"))


def _gpus(proc_root: Path) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA GPUs; empty if CUDA_VISIBLE_DEVICES hides them all."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return ()
    folder = proc_root / "driver/nvidia/gpus"
    try:
        return tuple(sorted(path.name for path in folder.iterdir()))
    except OSError:
        return ()


def _cpu_model(proc_root: Path) -> str:
    for line in read_text(proc_root / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()


def numa_cores(address: str | None, sys_root: Path = _SYS) -> tuple[int, ...]:
    """Return the usable cores that are close to the GPU with this PCI address; empty if unknown."""
    if address is None:
        return ()
    text = read_text(sys_root / "bus/pci/devices" / address / "local_cpulist")
    cores: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            cores += range(int(low), int(high or low) + 1)
    return tuple(core for core in cores if core in os.sched_getaffinity(0))
