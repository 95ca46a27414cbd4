"""Checks of environment variables that ddpbench sets itself or that change measurements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddpbench.launch.doctor.finding import CheckResult, note, ok, problem
from ddpbench.launch.doctor.host import Host
from ddpbench.spec.environment import meant

SET_FOR_RANKS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that `ddpbench.launch.plan` sets for every rank."""

_EFFECTS = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel, so nothing overlaps",
    "CUDA_DEVICE_MAX_CONNECTIONS": "kernels and copies share other queues",
    "NVIDIA_TF32_OVERRIDE": "float32 is computed in another precision",
    "NCCL_P2P_DISABLE": "GPUs no longer reach each other's memory",
    "NCCL_SHM_DISABLE": "processes exchange through the network instead of shared memory",
    "NCCL_IB_DISABLE": "InfiniBand is left unused",
    "NCCL_ALGO": "overrides nccl's choice of algorithm",
    "NCCL_PROTO": "overrides nccl's choice of protocol",
    "NCCL_DEBUG": "nccl writes while it works",
    "TORCH_DISTRIBUTED_DEBUG": "DDP also checks and logs",
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for collectives",
    "NCCL_BLOCKING_WAIT": "the host waits for collectives",
    "TORCH_CPP_LOG_LEVEL": "torch writes while it works",
    "TORCH_LOGS": "torch writes while it works",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver",
    "PYTORCH_CUDA_ALLOC_CONF": "memory is handed out differently",
    "PYTORCH_ALLOC_CONF": "memory is handed out differently",
    "LD_PRELOAD": "loads another library before the system's",
    "OMP_PROC_BIND": "threads are pinned a second time, after ddpbench",
    "OMP_PLACES": "threads are pinned a second time, after ddpbench",
    "GOMP_CPU_AFFINITY": "threads are pinned a second time, after ddpbench",
    "KMP_AFFINITY": "threads are pinned a second time, after ddpbench",
    "OMP_WAIT_POLICY": "idle threads may spin on other ranks' cores",
    "KMP_BLOCKTIME": "idle threads may spin on other ranks' cores",
    "PYTHONPROFILEIMPORTTIME": "Python times and prints every import",
    "PYTHONDEVMODE": "Python runs additional checks",
    "PYTHONMALLOC": "Python allocates memory differently",
}
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_", "MALLOC_", "UCX_", "FI_")
_HARMLESS = {
    *("NCCL_VERSION", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TORCH_HOME", "TORCH_CUDA_ARCH_LIST"),
    *("PYTORCH_BUILD_VERSION", "PYTORCH_BUILD_NUMBER", "PYTORCH_VERSION", "TORCH_EXTENSIONS_DIR"),
    *("TORCH_SHOW_CPP_STACKTRACES", "MKL_SERVICE_FORCE_INTEL", "PYTORCH_DOWNLOAD_LINK"),
}
"""Variables that need no finding here, because they change no measurement or a different topic checks them."""
_OFF = ("", "0", "OFF", "FALSE", "PASSIVE", "WARN", "VERSION")
"""Values in upper case. A variable with one of these values needs no finding."""


def threads(host: Host) -> Iterator[CheckResult]:
    """Report variables such as OMP_NUM_THREADS, which ddpbench sets for ranks to its own values."""
    given = [f"{name}={host.env[name]}" for name in SET_FOR_RANKS if name in host.env]
    if given:
        yield ok(
            "threads",
            f"{', '.join(given)} is set here, but ranks get threads_per_rank instead (1 unless the "
            "experiment sets more)",
        )
    else:
        yield ok(
            "threads", "ranks get threads_per_rank at every world size (1 unless the experiment sets more)"
        )


def debugging(host: Host) -> Iterator[CheckResult]:
    """Report TORCH_DISTRIBUTED_DEBUG=DETAIL, which makes DDP over gloo crash with a segmentation fault (torch 2.13)."""
    if host.env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield problem(
            "TORCH_DISTRIBUTED_DEBUG",
            "DETAIL: another collective checks every collective first, and DDP over gloo crashes in "
            "these checks",
            "unset TORCH_DISTRIBUTED_DEBUG",
        )


def variables(host: Host) -> Iterator[CheckResult]:
    """Report other variables that ranks inherit and that change measurements."""
    plain: list[str] = []
    for name in sorted(host.env):
        value = host.env[name]
        if name in _HARMLESS or name in SET_FOR_RANKS or value.upper() in _OFF:
            continue
        if name == "TORCH_DISTRIBUTED_DEBUG" and value.upper() == "DETAIL":
            continue  # `debugging` reports it
        if other := meant(name):
            yield note(
                name,
                f"{value}: no known program reads this variable; did you mean {other}?",
                f"set {other} and unset {name}",
            )
        elif name in _EFFECTS:
            yield note(name, f"{value}: {_EFFECTS[name]}", f"unless you mean to measure that: unset {name}")
        elif name.startswith(_PREFIXES):
            plain.append(f"{name}={value}")
    if plain:
        yield note(
            "others",
            f"{', '.join(plain)}: every rank inherits them",
            "unset those you do not mean to measure",
        )


def files(host: Host) -> Iterator[CheckResult]:
    """Report configuration files of nccl, whose settings act like environment variables."""
    own = [Path(host.env["HOME"]) / ".nccl.conf"] if host.env.get("HOME") else []
    for path in (host.etc_root / "nccl.conf", *own):
        lines = [line for line in host.read(path).splitlines() if line.strip() and not line.startswith("#")]
        if lines:
            yield note(
                str(path),
                f"sets {', '.join(line.strip() for line in lines)}",
                "nccl reads this file in every rank: move it away unless you mean to measure its settings",
            )


def sharing(host: Host) -> Iterator[CheckResult]:
    """If DDPBENCH_SHARED_MACHINE=1 is set, report that it allows several sweeps at the same time."""
    if host.env.get("DDPBENCH_SHARED_MACHINE") == "1":
        yield note(
            "DDPBENCH_SHARED_MACHINE",
            "1: sweeps may disturb each other, and every number is flagged",
            "unset it for numbers without flags",
        )


def job(host: Host) -> Iterator[CheckResult]:
    """Report this process's Slurm job, and variables set by a launcher such as torchrun."""
    if "SLURM_JOB_ID" in host.env:
        count = host.env.get("SLURM_JOB_NUM_NODES", "1")
        yield ok("job", f"Slurm job {host.env['SLURM_JOB_ID']} on {count} node{'s' if count != '1' else ''}")
    given = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR") if name in host.env]
    if given:
        yield note(
            "launcher",
            f"{', '.join(given)} set, as in a rank of another launcher",
            "start ddpbench once, outside torchrun or srun: it starts the ranks itself and sets these for them",
        )
