"""Find the GPUs that torch can use on this machine, and skip cases whose devices or programs are missing here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ddpbench.errors import MachineError
from ddpbench.guarded_folder import GuardedFolder
from ddpbench.machine.hardware import Hardware
from ddpbench.machine.mpi import has_ucc, mpi_version
from ddpbench.runtime.launched import check_launcher
from ddpbench.runtime.probes import probed
from ddpbench.runtime.server import ServerProcess
from ddpbench.spec import OWN_TYPES, Case, Devices, Experiment, PlannedCase

BF16_CAPABILITY = 8.0
"""The lowest compute capability of GPUs with bf16 arithmetic in hardware. On older GPUs, torch emulates bf16."""


def usable_devices(hardware: Hardware) -> Devices:
    """Return the devices that torch can use. A process with torch is started only if there are signs of a GPU."""
    if not hardware.may_have_gpus:
        return hardware.devices(gpus=0)
    with GuardedFolder("ddpbench-") as path:
        env = {"OPENBLAS_NUM_THREADS": "1"}
        with ServerProcess(env, path / "server.log", log_stays=False) as server:
            probe = probed(server, path, log_stays=False)
    devices = hardware.devices(gpus=len(probe["gpus"]))
    old = [gpu for gpu in probe["gpus"] if float(gpu["capability"]) < BF16_CAPABILITY]
    return replace(devices, without_bf16=f"{old[0]['name']} has {old[0]['capability']}") if old else devices


def check_devices(experiment: Experiment, devices: Devices) -> None:
    """Check that this machine has at least one backend, launcher and device of the experiment.

    Cases that need a missing one are skipped later.

    Raises:
        MachineError: all backends, all launchers or all devices of the experiment are missing.
    """
    base, axes = experiment.base, experiment.axes
    backends = axes.get("backend", [base.backend])
    for values, why_missing in (
        (backends, missing_backend),
        (axes.get("launcher", [base.launcher]), missing_launcher),
    ):
        reasons = [why_missing(value) for value in values if isinstance(value, str)]
        if reasons and all(reasons):
            raise MachineError(reasons[0])
    if devices.gpus:
        return
    if set(axes.get("device", [base.device])) == {"cuda"}:
        raise MachineError('device = "cuda": torch finds no usable GPU here; set device = "cpu" or "auto"')
    if backends == ["nccl"] and not experiment.emulates:
        raise MachineError(
            'backend = "nccl" moves data between GPUs only, and torch finds no usable GPU here; set '
            'backend = "gloo" or "auto"'
        )


def missing_backend(backend: str) -> str:
    """Return why ranks cannot use this backend here, and what to do; empty if they can.

    Also empty for backends that depend on GPUs, which are checked elsewhere.
    """
    if backend == "ucc" and not has_ucc():
        return (
            'backend = "ucc": this build of torch has no UCC (builds from source and NVIDIA\'s '
            'containers have it); set backend = "gloo", "mpi" or "nccl"'
        )
    return _refusal(mpi_version) if backend == "mpi" else ""


def missing_launcher(launcher: str) -> str:
    """Return why this launcher cannot start ranks here, and what to do; empty if it can, or for `slurm`.

    Only a job can find out about Slurm.
    """
    return _refusal(lambda: check_launcher(launcher)) if launcher != "slurm" else ""


def _refusal(check: Callable[[], object]) -> str:
    try:
        check()
    except MachineError as error:
        return str(error)
    return ""


def within_programs(entries: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Return the planned cases, with a skip reason for each case whose backend or launcher is missing here."""
    runnable = [entry.case for entry in entries if entry.skip_reason is None]
    backends = {name: missing_backend(name) for name in {case.backend for case in runnable}}
    launchers = {name: missing_launcher(name) for name in {case.launcher for case in runnable}}

    def reason(case: Case) -> str:
        return backends[case.backend] or launchers[case.launcher]

    return [
        replace(entry, skip_reason=reason(entry.case) or None) if entry.skip_reason is None else entry
        for entry in entries
    ]


def within_gpus(entry: PlannedCase, devices: Devices) -> PlannedCase:
    """Return the planned case, with a skip reason if it needs more GPUs than the machine has."""
    case = entry.case
    if entry.skip_reason is not None or case.device != "cuda" or case.world_size <= devices.gpus:
        return entry
    have = f"{devices.gpus} GPU{'s' if devices.gpus != 1 else ''}" if devices.gpus else "no GPU torch can use"
    reason = (
        f"needs {case.world_size} GPU{'s' if case.world_size != 1 else ''}, one per rank; this machine has "
        f"{have}"
    )
    return replace(entry, skip_reason=reason)


def within_precision(entry: PlannedCase, devices: Devices) -> PlannedCase:
    """Return the planned case, with a skip reason if its device or dtype does not support its `precision`."""
    case = entry.case
    if entry.skip_reason is not None or case.precision == "full":
        return entry
    reason = ""
    if case.dtype not in ("float32", OWN_TYPES):  # the types of a user's class are known only after a trial
        reason = (
            f'autocast does not change {case.dtype}: precision = "{case.precision}" needs dtype = "float32"'
        )
    elif case.precision == "bf16" and case.device == "cuda" and devices.without_bf16:
        reason = f"bf16 needs compute capability {BF16_CAPABILITY:.1f} (Ampere); {devices.without_bf16}"
    return replace(entry, skip_reason=reason) if reason else entry
