"""Plan an experiment for nodes on which a different program, such as torchrun or Slurm, starts the ranks."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ddpbench.errors import OutputError, RequestError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.devices import usable_devices
from ddpbench.launch.own_batches import batch_notes, own_names, stated_batches
from ddpbench.launch.own_workloads import with_located
from ddpbench.launch.plan import Plan, skip_reasons
from ddpbench.machine.hardware import read_hardware
from ddpbench.naming import layout_of
from ddpbench.records import RunDir, write_atomically
from ddpbench.records.job_key import make_job_key
from ddpbench.records.rundir import explain_os_error
from ddpbench.runtime.equal_caps import open_words, replayed_gradients, sentences, without_equal
from ddpbench.spec import (
    OF_FRAMEWORKS,
    Case,
    Catalog,
    Devices,
    Experiment,
    PlannedCase,
    crossed_words,
    expand,
    load_experiment,
    resolve,
    without_all_threads,
)


@dataclass(frozen=True, slots=True)
class JobShape:
    """The number of nodes, and the ranks per node."""

    nodes: int
    ranks_per_node: int

    @property
    def slots(self) -> int:
        """Number of ranks that fit on all nodes."""
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        return f"{self.nodes} x {self.ranks_per_node} (nodes x ranks)"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedFor:
    """An experiment with `auto` resolved for given nodes, and its cases.

    Cases that do not fit the nodes are skipped.
    """

    experiment: Experiment
    cases: tuple[PlannedCase, ...]
    notes: tuple[str, ...]
    """Sentences on what is not run as requested, with reasons."""


def planned_for(
    source: Path, shape: JobShape, *, launcher: Literal["torchrun", "slurm"], overrides: Sequence[str] = ()
) -> PlannedFor:
    """Return the experiment's cases on nodes of this shape.

    The world size `auto` becomes 1, 2, 4 ... up to the number of ranks that fit. A case without a number of nodes gets
    the smallest with room for it. A case that does not fit is skipped, with a reason.

    Raises:
        RequestError: the experiment is invalid, or none of its cases fits.
    """
    catalog = TableCatalog(source.parent)
    notes: list[str] = []
    experiment = load_experiment(source, catalog, overrides, on_note=notes.append)
    experiment = with_located(experiment, source.parent)
    hardware = read_hardware()
    here = usable_devices(hardware) if experiment.base.device == "auto" else hardware.devices(gpus=0)
    devices = _devices(experiment, here, shape)
    free = "nodes" not in experiment.axes and "nodes" not in experiment.base.model_fields_set
    chosen = experiment.base.device != "auto" or "device" in experiment.axes or experiment.emulates
    if devices.kind == "cpu" and not chosen:
        notes.append(
            "planned for CPUs, because this machine has no GPU: if the nodes have GPUs, add --set "
            "base.device=cuda"
        )
    if "launcher" in experiment.axes:
        notes.append(f"the axis launcher is ignored: on these nodes {launcher} starts all ranks")
    if "all" in experiment.axes.get("threads_per_rank", []):
        notes.append(
            "the case with one thread per core is left out: each slot of a job has cores for only one "
            "rank's threads"
        )
    experiment = _under_launcher(resolve(without_all_threads(experiment), devices), launcher)
    names = own_names(experiment)
    batches = stated_batches(names) if importlib.util.find_spec("torch") is not None else {}
    notes += batch_notes(experiment, batches)
    entries = expand(experiment, TableCatalog(source.parent, batches), devices)
    cases = without_equal(
        [_fitted(entry, shape, catalog, free=free) for entry in entries], replayed_gradients
    )
    notes += [*sentences(cases), open_words(cases)]
    if all(entry.skip_reason is not None for entry in cases):
        raise RequestError(f"{source}: no case of this experiment fits these nodes\n{skip_reasons(cases)}")
    notes.append(crossed_words(experiment, [(entry.case.world_size, entry.case.nodes) for entry in cases]))
    return PlannedFor(experiment=experiment, cases=tuple(cases), notes=tuple(filter(None, notes)))


def write_run(run: RunDir, plan: Plan, machine: dict[str, Any]) -> None:
    """Write a new run directory with the plan and `machine`, the part of machine.json that is known before the job.

    Raises:
        OutputError: the directory holds other files, or cannot be written. In this case, no file is left behind.
    """
    made = run.create()
    try:
        write_atomically(run.machine, json.dumps(machine, indent=1) + "\n")
        # with the seed of the launches' order, which may have been drawn
        write_atomically(run.experiment, plan.experiment.to_toml())
        write_atomically(run.plan, plan.dumps())
        make_job_key(run)
    except OSError as error:
        made.remove_files(run.plan, run.job_key)
        made.remove()
        raise OutputError(f"{run.path} cannot be written: {explain_os_error(error)}") from None


def _devices(experiment: Experiment, here: Devices, shape: JobShape) -> Devices:
    base = experiment.base
    kind = here.kind if base.device == "auto" else base.device
    return Devices(
        kind=kind,
        gpus=shape.slots if kind == "cuda" else 0,
        cores=shape.slots * base.threads,
    )


def _under_launcher(experiment: Experiment, launcher: Literal["torchrun", "slurm"]) -> Experiment:
    axes = {name: values for name, values in experiment.axes.items() if name != "launcher"}
    base = experiment.base.model_copy(update={"launcher": launcher})
    return experiment.model_copy(update={"base": base, "axes": axes})


def _fitted(entry: PlannedCase, shape: JobShape, catalog: Catalog, *, free: bool) -> PlannedCase:
    """Return the case as it runs on these nodes, with a skip reason if it does not fit.

    If `free`, it gets the smallest number of nodes that has room.
    """
    if entry.skip_reason is not None:
        return entry
    case, one_process = entry.case, catalog.strategy(entry.case.strategy).one_process
    if free and not one_process:
        case = _on_fewest(case, shape)
    reason = _reason(case, shape, one_process=one_process)
    # Only the nodes know whether ranks share cores; the first process there fills this in.
    return replace(entry, case=case, skip_reason=reason, oversubscribed=False)


def _on_fewest(case: Case, shape: JobShape) -> Case:
    count = -(-case.world_size // shape.ranks_per_node)
    while count <= shape.nodes and case.world_size % count:
        count += 1
    if count > shape.nodes:
        return case
    return replace(case, nodes=count, ranks_per_node=case.world_size // count)


def _reason(case: Case, shape: JobShape, *, one_process: bool) -> str | None:
    if case.recovery != "off":
        return "recovery is measured on one machine, by ddpbench sweep"
    if case.launcher in OF_FRAMEWORKS:
        return f"{case.launcher} starts its ranks itself, on one machine, under ddpbench sweep"
    if one_process and case.nodes > 1:
        return f"{case.strategy} is one process, which cannot run on {case.nodes} nodes"
    if one_process and case.world_size > shape.ranks_per_node:
        return (
            f"runs all {case.world_size} replicas in one process, but the launch plans {shape.ranks_per_node} ranks "
            "per node"
        )
    fits = one_process or (case.nodes <= shape.nodes and case.ranks_per_node <= shape.ranks_per_node)
    return None if fits else f"needs {layout_of(case)} (nodes x ranks), but planned for {shape}"
