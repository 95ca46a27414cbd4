"""What torch can use of a machine's GPUs, and which cases need more than that."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from ddpbench.errors import MachineError
from ddpbench.machine.hardware import Hardware
from ddpbench.machine.launched import check_launcher
from ddpbench.machine.mpi import has_ucc, mpi_version
from ddpbench.machine.server import ServerProcess
from ddpbench.spec import Devices, Experiment, PlannedCase

BF16_CAPABILITY = 8.0
"""From this compute capability on GPUs multiply in bf16; torch emulates it on older ones."""


def usable_devices(hardware: Hardware) -> Devices:
    """Return the devices torch can use: without a sign of a GPU there is nothing to ask a rank about."""
    if not hardware.may_have_gpus:
        return hardware.devices(gpus=0)
    with tempfile.TemporaryDirectory(prefix="ddpbench-") as folder:
        path = Path(folder)
        with ServerProcess({"OPENBLAS_NUM_THREADS": "1"}, path / "server.log") as server:
            probe = server.probe(path)
    devices = hardware.devices(gpus=len(probe["gpus"]))
    old = [gpu for gpu in probe["gpus"] if float(gpu["capability"]) < BF16_CAPABILITY]
    return replace(devices, without_bf16=f"{old[0]['name']} has {old[0]['capability']}") if old else devices


def check_devices(experiment: Experiment, devices: Devices) -> None:
    """Refuses what was asked for by name and is not here at all; single cases that do not fit are skipped.

    Raises:
        MachineError: it is not here.
    """
    base, axes = experiment.base, experiment.axes
    backends = axes.get("backend", [base.backend])
    if "mpi" in backends:
        mpi_version()
    if "ucc" in backends and not has_ucc():
        raise MachineError(
            'backend = "ucc": this build of torch has no UCC, which is in builds from source and in NVIDIA\'s '
            'containers; set it to "gloo", "mpi" or "nccl"'
        )
    for launcher in axes.get("launcher", [base.launcher]):
        if isinstance(launcher, str) and launcher != "slurm":
            check_launcher(launcher)
    if devices.gpus:
        return
    if "cuda" in axes.get("device", [base.device]):
        raise MachineError(
            'device = "cuda": there is no GPU here that torch can use; set it to "cpu" or "auto"'
        )
    if backends == ["nccl"] and not experiment.emulates:
        raise MachineError(
            'backend = "nccl": nccl moves data between GPUs only, and there is none here that torch can use; '
            'set it to "gloo" or "auto"'
        )


def within_gpus(entry: PlannedCase, devices: Devices) -> PlannedCase:
    """Return the planned case, skipped with a reason if it needs more GPUs than there are."""
    case = entry.case
    if entry.skip_reason is not None or case.device != "cuda" or case.world_size <= devices.gpus:
        return entry
    have = f"{devices.gpus} GPU{'s' if devices.gpus != 1 else ''}" if devices.gpus else "no GPU torch can use"
    reason = f"needs {case.world_size} GPU{'s' if case.world_size != 1 else ''}, one a rank; here is {have}"
    return replace(entry, skip_reason=reason)


def within_precision(entry: PlannedCase, devices: Devices) -> PlannedCase:
    """Return the planned case, skipped with a reason if its device or number type has no such precision."""
    case = entry.case
    if entry.skip_reason is not None or case.precision == "full":
        return entry
    reason = ""
    if case.dtype != "float32":
        reason = f'autocast leaves {case.dtype} as it is: {case.precision} needs dtype = "float32"'
    elif case.precision == "bf16" and case.device == "cuda" and devices.without_bf16:
        reason = f"bf16 needs compute capability {BF16_CAPABILITY:.1f} (Ampere); {devices.without_bf16}"
    return replace(entry, skip_reason=reason) if reason else entry
