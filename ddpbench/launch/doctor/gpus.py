"""Checks of the GPUs: which are present, their state, and how they are connected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddpbench.launch.doctor.finding import CheckResult, note, ok, problem
from ddpbench.launch.doctor.host import ASK_GPU_LINKS, ASK_GPUS, GPU_FIELDS, Host
from ddpbench.units import format_bytes

BUSY_PERCENT = 5
IN_USE_BYTES = 2**30

_LINKS = (
    (r"NV\d+", "NVLink"),
    (r"PIX", "one PCIe switch"),
    (r"PXB", "several PCIe switches"),
    (r"PHB", "PCIe through the processor's host bridge"),
    (r"NODE", "PCIe through several host bridges of one NUMA node"),
    (r"SYS|SOC", "PCIe and the link between processors (NUMA nodes)"),
)
"""Patterns of the link names in `nvidia-smi topo -m`, each with its meaning, fastest first."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi reports it; memory in bytes."""

    index: int
    name: str
    memory: int
    memory_used: int
    busy_percent: int
    address: str
    """The PCI address as sysfs writes it."""
    driver: str
    persistent: bool
    compute_mode: str
    mig: bool


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


def parse_gpus(text: str) -> list[Gpu]:
    """Parse `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; skip malformed lines."""
    parsed: list[Gpu] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(GPU_FIELDS) or not cells[0].isdigit():
            continue
        index, name, memory, used, busy, address, driver, persistence, mode, mig = cells
        parsed.append(
            Gpu(
                index=int(index),
                name=name,
                memory=_whole(memory) * 2**20,
                memory_used=_whole(used) * 2**20,
                busy_percent=_whole(busy),
                address=address.lower()[
                    -12:
                ],  # nvidia-smi writes the domain with eight digits, sysfs with four
                driver=driver,
                persistent=persistence == "Enabled",
                compute_mode=mode,
                mig=mig == "Enabled",
            )
        )
    return parsed


def parse_links(text: str) -> dict[tuple[str, str], str]:
    """Parse `nvidia-smi topo -m` into link names by GPU pair, such as `("GPU0", "GPU1"): "NV18"`."""
    rows = [
        [cell.strip() for cell in line.split("\t")]
        for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    ]
    header = next((row for row in rows if "GPU0" in row[1:]), [])
    by_pair: dict[tuple[str, str], str] = {}
    for row in rows:
        if row is header or not re.fullmatch(r"GPU\d+", row[0]):
            continue
        for column, cell in zip(header[1:], row[1:], strict=False):
            if re.fullmatch(r"GPU\d+", column) and int(column[3:]) > int(row[0][3:]):
                by_pair[row[0], column] = cell
    return by_pair


def gpus(host: Host) -> Iterator[CheckResult]:
    """Report the visible GPUs, their driver, whether they are in use, and settings that hinder training."""
    hidden = host.env.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        yield note(
            "visibility",
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU",
            "unset it to measure on GPUs; leave it to measure on the CPU",
        )
        return
    if hidden is not None:
        yield ok("visibility", f"CUDA_VISIBLE_DEVICES={hidden}: only these, in this order")
    if not host.hardware().may_have_gpus:
        yield _no_sign_of_any(host)
        return
    reply = host.ask(*ASK_GPUS)
    found = parse_gpus(reply.out)
    if not found:
        yield note(
            "gpus",
            f"a GPU seems to be here, but nvidia-smi gives no information: {reply.last_words}",
            "install the driver's tools, or in a container pass them in (docker run --gpus all, with "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        )
        return
    yield ok("driver", found[0].driver)
    for gpu in found:
        yield from _gpu(host, gpu)
    yield from _settings(found, chosen=hidden is not None)
    for gpu in found:
        yield from _compute_mode(gpu)


def _no_sign_of_any(host: Host) -> CheckResult:
    if (host.dev_root / "kfd").exists():
        return note(
            "gpus",
            "an AMD GPU (/dev/kfd)",
            "ddpbench measures on NVIDIA GPUs and on CPUs; it was never run with ROCm",
        )
    return ok("gpus", "none: no NVIDIA driver in /proc, no device file in /dev")


def _settings(found: list[Gpu], *, chosen: bool) -> Iterator[CheckResult]:
    """Report GPUs that differ, lose their driver between launches, or are split (MIG).

    Differences are not checked under CUDA_VISIBLE_DEVICES (`chosen`): nvidia-smi does not report the selected GPUs.
    """
    if not chosen and len(kinds := dict.fromkeys(gpu.name for gpu in found)) > 1:
        yield note(
            "mixed GPUs",
            f"{', '.join(kinds)}: CUDA numbers the fastest first, and the slowest GPU of a job sets its pace",
            "use GPUs of one kind: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=..., with "
            "nvidia-smi's numbers",
        )
    sleeping = [gpu.index for gpu in found if not gpu.persistent]
    if sleeping:
        yield note(
            "persistence",
            f"off on GPU {_listed(sleeping)}: the driver may unload between launches, and clocks drop",
            "sudo nvidia-smi -pm 1",
        )
    split = [gpu.index for gpu in found if gpu.mig]
    if split:
        yield note(
            "MIG",
            f"GPU {_listed(split)} is split into instances",
            "nccl can use only one instance per process, without links to the others: for more than "
            "one rank turn MIG off (sudo nvidia-smi -mig 0)",
        )


def _compute_mode(gpu: Gpu) -> Iterator[CheckResult]:
    if gpu.compute_mode == "Prohibited":
        yield problem(
            "compute mode",
            f"GPU {gpu.index} is prohibited: no process may compute on it",
            f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",
        )
    elif gpu.compute_mode.startswith("Exclusive"):
        yield note(
            "compute mode",
            f"GPU {gpu.index} takes one process at a time",
            f"one rank per GPU fits; if a launch finds the GPU busy: sudo nvidia-smi -i {gpu.index} -c "
            "DEFAULT",
        )


def _gpu(host: Host, gpu: Gpu) -> Iterator[CheckResult]:
    node = host.read(host.sys_root / "bus/pci/devices" / gpu.address / "numa_node")
    where = f", NUMA {node}" if node.isdigit() else ""  # -1: the firmware does not report it
    found = f"{gpu.name}, {format_bytes(gpu.memory)}, {gpu.address}{where}"
    if gpu.busy_percent > BUSY_PERCENT or gpu.memory_used > IN_USE_BYTES:
        yield note(
            f"GPU {gpu.index}",
            f"{found}; in use: {gpu.busy_percent} % busy, {format_bytes(gpu.memory_used)} taken",
            "find the process with nvidia-smi and wait until it ends, or leave this GPU out with "
            "CUDA_VISIBLE_DEVICES",
        )
    else:
        yield ok(f"GPU {gpu.index}", found)


def links(host: Host) -> Iterator[CheckResult]:
    """Report how the GPUs are connected."""
    if not host.hardware().may_have_gpus:
        return
    reply = host.ask(*ASK_GPU_LINKS)
    pairs = parse_links(reply.out)
    if not pairs:
        if len(parse_gpus(host.ask(*ASK_GPUS).out)) == 1:
            yield ok("links", "one GPU: nothing to join")
        else:
            yield note(
                "links",
                f"nvidia-smi topo -m gives no information: {reply.last_words}",
                "nccl finds the links itself: NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=GRAPH shows them",
            )
        return
    by_word: dict[str, list[str]] = {}
    for (one, other), word in pairs.items():
        by_word.setdefault(word, []).append(f"{one}-{other}")
    described = "; ".join(
        f"{_explained(word)}: {_some(names, len(pairs))}"
        for word, names in sorted(by_word.items(), key=lambda item: _rank(item[0]))
    )
    far = [pair for pair, word in pairs.items() if _rank(word) >= len(_LINKS) - 1]
    if far:
        yield note("links", described, _nearer(pairs, far))
    else:
        yield ok("links", described)


def _nearer(pairs: dict[tuple[str, str], str], far: list[tuple[str, str]]) -> str:
    """Advise on the pairs in `far`, with the largest set of GPUs found without slow links."""
    names = sorted({name for pair in pairs for name in pair}, key=lambda name: int(name[3:]))
    near = set(pairs) - set(far)
    near |= {(other, one) for one, other in near}
    groups: list[list[str]] = []
    for centre in names:
        group = [centre]
        for name in names:
            if all((name, member) in near for member in group):
                group.append(name)
        groups.append(group)
    largest = max(groups, key=len)
    if len(largest) == 1:
        return "no pair of GPUs is closer: exchange costs more here than over NVLink or within a NUMA node"
    use = ",".join(sorted((name.removeprefix("GPU") for name in largest), key=int))
    return (
        f"exchange between such pairs uses the slowest path: runs on up to {len(largest)} GPUs avoid it "
        f"with CUDA_VISIBLE_DEVICES={use}"
    )


def _rank(word: str) -> int:
    return next((n for n, (pattern, _) in enumerate(_LINKS) if re.fullmatch(pattern, word)), len(_LINKS))


def _explained(word: str) -> str:
    for pattern, meaning in _LINKS:
        if re.fullmatch(pattern, word):
            count = word.removeprefix("NV")
            return (
                f"{meaning} ({count} link{'s' if count != '1' else ''})" if meaning == "NVLink" else meaning
            )
    return f"{word or 'not reported'} (unknown here)"


def _some(names: list[str], all_pairs: int) -> str:
    if len(names) == all_pairs and all_pairs > 1:
        return f"all {all_pairs} pairs"
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more pairs" if len(names) > 4 else shown


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
