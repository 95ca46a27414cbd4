"""Read how a machine is set up (firmware, clocks, threads, networks), only to record it."""

from __future__ import annotations

import platform
from pathlib import Path

from ddpbench.cpu_quota import read_text
from ddpbench.text_safety import clean
from ddpbench.units import format_bit_rate


def read_setup(root: Path = Path("/")) -> dict[str, str]:
    """Return facts about the machine's setup, by name; unknown facts are left out."""
    sys, cpus = root / "sys", root / "sys/devices/system/cpu"
    dmi = sys / "class/dmi/id"
    facts: dict[str, str] = {
        "system": _joined(dmi, "sys_vendor", "product_name"),
        "firmware": _joined(dmi, "bios_vendor", "bios_version", "bios_date"),
        **_of_cpu(root / "proc/cpuinfo"),
        "os": _os_name(root / "etc/os-release"),
        "libc": " ".join(platform.libc_ver()).strip(),
        "threads_per_core": {"0": "1", "1": "2 or more"}.get(_line(cpus / "smt/active"), ""),
        "numa_nodes": str(len(list((sys / "devices/system/node").glob("node[0-9]*"))) or ""),
        "cpu_governor": _each(cpus, "cpu[0-9]*/cpufreq/scaling_governor"),
        "cpu_boost": _boost(cpus),
        "transparent_huge_pages": _chosen(_line(sys / "kernel/mm/transparent_hugepage/enabled")),
        "network": "; ".join(_interfaces(sys / "class/net")),
        "infiniband": "; ".join(_infiniband(sys / "class/infiniband")),
    }
    return {
        name: clean(value) for name, value in facts.items() if value
    }  # a firmware's maker may write any characters


def _line(path: Path) -> str:
    return " ".join(read_text(path).split())


def _joined(folder: Path, *names: str) -> str:
    return " ".join(word for name in names if (word := _line(folder / name)))


def _of_cpu(cpuinfo: Path) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in read_text(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    virtual = "hypervisor" in fields.get("flags", "").split()
    return {"microcode": fields.get("microcode", ""), "virtual_machine": "yes" if virtual else ""}


def _os_name(release: Path) -> str:
    for line in read_text(release).splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip().strip("\"'")
    return platform.system()


def _each(folder: Path, pattern: str) -> str:
    return ", ".join(sorted({_line(path) for path in folder.glob(pattern)} - {""}))


def _boost(cpus: Path) -> str:
    held = _line(cpus / "intel_pstate/no_turbo")
    allowed = _line(cpus / "cpufreq/boost") or {"0": "1", "1": "0"}.get(held, "")
    return {"0": "off", "1": "on"}.get(allowed, "")


def _chosen(line: str) -> str:
    """Return `madvise` for `always [madvise] never`."""
    return line.partition("[")[2].partition("]")[0]


def _interfaces(folder: Path) -> list[str]:
    """Describe each network device, such as `eth0 25 Gbit/s, mlx5_core`."""
    interfaces = []
    for path in sorted(folder.glob("*")):
        if not (path / "device").exists():  # a bridge, loopback or virtual pair
            continue
        speed = _line(path / "speed")
        rate = f" {format_bit_rate(1e6 * int(speed))}" if speed.isdigit() and int(speed) else ""
        driver = path / "device/driver"
        interfaces.append(f"{path.name}{rate}{f', {driver.resolve().name}' if driver.exists() else ''}")
    return interfaces


def _infiniband(folder: Path) -> list[str]:
    adapters = []
    for path in sorted(folder.glob("*")):
        ports = [f"port {port.name} {_line(port / 'rate')}" for port in sorted(path.glob("ports/*"))]
        firmware = _line(path / "fw_ver")
        adapters.append(", ".join([path.name, *ports, *([f"firmware {firmware}"] if firmware else [])]))
    return adapters
