"""Checks of the software: Python, this package, torch, and torch's use of the GPUs."""

from __future__ import annotations

import platform
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddpbench.launch.doctor.finding import CheckResult, note, ok, problem
from ddpbench.launch.doctor.host import Host, TorchAnswer
from ddpbench.text_safety import command
from ddpbench.version import VERSION

OLDEST_TORCH = (2, 5)
"""The oldest torch that pyproject.toml allows."""
CHOOSE_A_BUILD = "choose the command for your system at pytorch.org/get-started/locally"

_REMEDIES = (
    (r"No module named 'torch'", "pip install torch; for a build with CUDA {choose}"),
    (
        r"libgomp",
        "install the OpenMP runtime: apt-get install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora)",
    ),
    (
        r"GLIBC_|GLIBCXX_|CXXABI_|ld-linux|libc\.musl|Error relocating",
        (
            "this build of torch needs another C or C++ library than this system has: use a newer system or "
            "container image (one with glibc, not musl), or an older torch"
        ),
    ),
    (
        r"libcu|libnccl|libnv|libcusparse",
        (
            "a CUDA library that torch was built with is missing: pip install --force-reinstall torch, or the CPU "
            "build; {choose}"
        ),
    ),
    (
        r"undefined symbol|version `",
        (
            "torch's libraries do not fit together, as after an incomplete update or with "
            "LD_LIBRARY_PATH set: install torch in a fresh environment"
        ),
    ),
    (r"cannot allocate memory|failed to map segment", "free memory, or raise the limits of ulimit -v and -m"),
    (
        r"No module named",
        "a package that torch needs is missing: pip install --force-reinstall torch",
    ),
    (
        r"no answer within",
        (
            "run this again, because the first import from a slow disk takes long; if that fails too, "
            "check the disk"
        ),
    ),
)


def python(host: Host) -> Iterator[CheckResult]:
    """Report the Python version."""
    yield ok("python", f"{platform.python_version()}, {sys.executable}")


def package(host: Host) -> Iterator[CheckResult]:
    """Report the ddpbench version."""
    yield ok("ddpbench", f"{VERSION}, {Path(__file__).resolve().parents[2]}")


def torch(host: Host) -> Iterator[CheckResult]:
    """Report whether torch is installed and can be imported, and its version."""
    answer = host.torch()
    facts = answer.facts
    if facts is None:
        missing = "No module named 'torch'" in answer.failure
        found = "not installed" if missing else f"cannot be imported: {answer.failure}"
        advice = _remedy(answer)
        if missing and host.c_library != "glibc":
            advice = (
                "torch has no builds for this C library (musl?): use an image with glibc, such as Debian's"
            )
        yield problem("torch", found, advice, blocks=True)
        return
    if not facts["distributed"]:
        yield problem(
            "torch",
            f"{facts['torch']}, built without torch.distributed",
            f"install a build with it: pip install torch; {CHOOSE_A_BUILD}",
            blocks=True,
        )
        return
    described = f"{facts['torch']}, CPU instructions {facts['cpu_capability']}"
    if _version(facts["torch"]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        yield problem(
            "torch",
            f"{described}; ddpbench needs {oldest}",
            command("pip", "install", f"torch>={oldest}"),
            blocks=True,
        )
    else:
        yield ok("torch", described)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _remedy(answer: TorchAnswer) -> str:
    if answer.code == -signal.SIGILL:
        return (
            "this CPU lacks instructions the build uses: install a build for it, or build torch from source"
        )
    if answer.code == -signal.SIGKILL:
        return "the system killed it, most likely because memory ran out: free some memory"
    for pattern, advice in _REMEDIES:
        if re.search(pattern, answer.failure, re.IGNORECASE):
            return advice.format(choose=CHOOSE_A_BUILD)
    return (
        "for the whole message run: python -c 'import torch'; if it does not help, try a fresh "
        "environment with only torch"
    )


def cuda(host: Host) -> Iterator[CheckResult]:
    """Report whether torch can use the GPUs of this machine, and if not, why."""
    facts = host.torch().facts
    if facts is None or not facts["distributed"]:
        return
    signs = host.hardware().may_have_gpus
    if facts["rocm_build"]:
        yield note(
            "cuda",
            f"torch is built for ROCm {facts['rocm_build']}",
            "ddpbench sees such GPUs as cuda, but was never run on one: check it with ddpbench verify first",
        )
        return
    if facts["cuda_build"] is None:
        if signs:
            yield problem(
                "cuda",
                "this machine has a GPU, but this torch is a CPU build",
                f"install a build with CUDA: {CHOOSE_A_BUILD}",
            )
        else:
            yield ok("cuda", "no GPU here, and torch is a CPU build")
        return
    driver = facts["driver_cuda"]
    built = f"torch is built for CUDA {facts['cuda_build']}"
    if not facts["gpus"]:
        if not signs:
            yield ok("cuda", f"{built}; no GPU here")
            return
        why = facts["warnings"][0].strip() if facts["warnings"] else "torch does not say why"
        yield problem(
            "cuda", f"this machine has a GPU, but torch cannot use it: {why}", _driver_advice(facts)
        )
        return
    count = len(facts["gpus"])
    newest = f", the driver runs up to {driver}" if driver else ""
    described = f"{built}{newest}; torch can use {count} GPU{'s' if count != 1 else ''}"
    strange = sorted(
        {gpu["capability"] for gpu in facts["gpus"] if not runs_on(gpu["capability"], facts["architectures"])}
    )
    if strange:
        yield problem(
            "cuda",
            f"{described}, but has no code for compute capability {', '.join(strange)} "
            f"(only {' '.join(facts['architectures'])})",
            f"install a torch built for this GPU: {CHOOSE_A_BUILD}",
        )
    else:
        yield ok("cuda", described)


def _driver_advice(facts: dict[str, Any]) -> str:
    driver, build = facts["driver_cuda"], facts["cuda_build"]
    if driver and _version(driver)[0] < _version(build)[0]:
        return (
            f"the driver runs up to CUDA {driver}: update it, or install a torch built for CUDA "
            f"{driver.partition('.')[0]}; {CHOOSE_A_BUILD}"
        )
    return (
        "check that nvidia-smi works. In a container pass the GPUs in (docker run --gpus all). After a "
        "driver update restart the machine"
    )


def runs_on(capability: str, architectures: list[str]) -> bool:
    """Return whether a torch build for these architectures (`sm_80`, `compute_90`) runs on a GPU of this capability.

    `sm_` runs on the same major version from that minor version on, and `compute_` (PTX) on this and newer versions.
    True for an empty list, because nothing is known.
    """
    major, minor = _version(capability)
    for name in architectures:
        kind, _, digits = name.partition("_")
        digits = re.match(r"\d*", digits)[0]  # type: ignore[index]
        if len(digits) < 2:
            continue
        built = (int(digits[:-1]), int(digits[-1]))
        if kind == "sm" and built[0] == major and built[1] <= minor:
            return True
        if kind == "compute" and built <= (major, minor):
            return True
    return not architectures
