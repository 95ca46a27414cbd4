"""Measure a workload's profile: validate the request, measure in a separate process, and write the profile's file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from ddpbench.errors import MachineError, OutputError, RequestError, WorkloadError
from ddpbench.guarded_folder import GuardedFolder
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.devices import usable_devices, within_gpus, within_precision
from ddpbench.launch.own_batches import own_names, stated_batches
from ddpbench.launch.own_workloads import with_located
from ddpbench.machine.claim import claimed
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.machine.hardware import Hardware, read_hardware
from ddpbench.machine.placement import deal, early_env
from ddpbench.records.outputs import check_output, is_stream, write_output
from ddpbench.runtime.probes import inspected, profiled
from ddpbench.runtime.server import ServerProcess
from ddpbench.runtime.trial import INSPECTION_TIMEOUT_S
from ddpbench.spec import Case, expand, limits, parse_experiment
from ddpbench.text_safety import command
from ddpbench.workloads.profile import Profile, parse_profile


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRequest:
    """The workload to profile, and the file to write. If `steps` is None, steps are measured for about 5 s."""

    workload: str
    device: str = "auto"
    local_batch: int | None = None
    steps: int | None = None
    overrides: Sequence[str] = ()
    out: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedProfile:
    """A validated request. Nothing has been measured yet."""

    case: Case
    hardware: Hardware
    steps: int | None
    out: Path


def prepare_profile(request: ProfileRequest) -> PreparedProfile:
    """Validate the request and return the case to profile; measure nothing.

    Raises:
        RequestError: the request cannot be met; the message says why.
    """
    if request.steps is not None:
        limits.PROFILED_STEPS.check_flag("--steps", request.steps)
    base = {"workload": request.workload, "strategy": "single", "device": request.device, "data": "memory"}
    if request.local_batch is not None:
        base["local_batch"] = request.local_batch  # type: ignore[assignment]
    folder = Path.cwd()
    catalog = TableCatalog(folder)
    text = tomli_w.dumps({"base": base})
    experiment = parse_experiment(
        text, catalog, name="profile", source=f"profile {request.workload}", overrides=request.overrides
    )
    hardware = read_hardware()
    devices = usable_devices(hardware)
    experiment = with_located(experiment, folder)
    batches = stated_batches(own_names(experiment)) if experiment.base.local_batch is None else {}
    planned = expand(experiment, TableCatalog(folder, batches), devices)
    if len(planned) != 1 or planned[0].case.strategy != "single":
        raise RequestError(
            f"{command('profile', request.workload)}: --set makes several cases, but a profile needs "
            "exactly one"
        )
    entry = within_precision(within_gpus(planned[0], devices), devices)
    if entry.skip_reason is not None:
        error = MachineError if entry.case.device == "cuda" and not devices.gpus else RequestError
        raise error(f"{command('profile', request.workload)}: {entry.skip_reason}")
    case = entry.case
    if case.compute != "real":
        raise RequestError(
            f"{case.workload} already replays a profile: profile the workload that it was made from"
        )
    return PreparedProfile(case=case, hardware=hardware, steps=request.steps, out=_out(request.out, case))


def _out(given: Path | None, case: Case) -> Path:
    out = given or Path(f"{re.sub(r'[^A-Za-z0-9]+', '-', case.workload).strip('-')}-{case.device}.json")
    if out.suffix != ".json" and not is_stream(out):
        raise OutputError(f"{command('--out', out)}: the name of a profile must end in .json")
    check_output(out)
    return out


def measure_profile(prepared: PreparedProfile, on_start: Callable[[], None] = lambda: None) -> Profile:
    """Measure the profile, write it to its file and return it. If interrupted, no file is left behind.

    `on_start` is called once the cores are free.

    Raises:
        MachineError: a sweep holds this machine's cores.
        WorkloadError: the workload does not work, or has no profile.
        LaunchError: the measuring process cannot be started.
    """
    case, hardware = prepared.case, prepared.hardware
    with ExitStack() as stack:
        stack.enter_context(nullcontext() if own_environment_allows_sharing() else claimed(hardware.cores))
        on_start()
        folder = stack.enter_context(GuardedFolder("ddpbench-profile-"))
        server = stack.enter_context(ServerProcess(early_env(case), folder / "server.log", log_stays=False))
        looked_at = inspected(server, case, folder, INSPECTION_TIMEOUT_S)
        found = looked_at
        if "problem" not in looked_at:
            cores = deal(hardware.cores, 1, threads=case.threads_per_rank, pinned=case.device == "cpu")
            found = profiled(server, case, folder, steps=prepared.steps, cores=cores[0].cores)
    if "problem" in found:
        raise WorkloadError(_explained(str(found["problem"])))
    text = str(found["profile"])
    write_output(prepared.out, text)
    return parse_profile(text)


def _explained(problem: str) -> str:
    no_memory = "memory" in problem.lower() or "SIGKILL" in problem
    return f"{problem} (out of memory? a smaller --local-batch needs less)" if no_memory else problem
