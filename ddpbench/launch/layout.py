"""Plans an experiment for nodes that another launcher starts ranks on, and writes its lines. Starts nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpbench.errors import OutputError, RequestError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.devices import usable_devices
from ddpbench.launch.own_batches import batch_notes, own_names, stated_batches
from ddpbench.launch.own_workloads import with_located
from ddpbench.launch.plan import Plan, make_plan, skip_reasons
from ddpbench.machine.equal_caps import open_words, replayed_gradients, sentences, without_equal
from ddpbench.machine.hardware import read_hardware
from ddpbench.machine.identity import planned_record
from ddpbench.records import RunDir, write_atomically
from ddpbench.records.job_key import make_job_key
from ddpbench.records.machine import read_machine
from ddpbench.records.rundir import checked_name, explain_os_error
from ddpbench.spec import (
    Case,
    Catalog,
    Devices,
    Experiment,
    PlannedCase,
    crossed_words,
    expand,
    limits,
    load_experiment,
    resolve,
)
from ddpbench.texts import command, shortened

DEFAULT_PORT = 29500
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The nodes to plan for, the first one's address being the rendezvous host."""

    names: tuple[str, ...]
    ranks_per_node: int = 1
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        bad = [name for name in self.names if not name or name.isdecimal() or name != shlex.quote(name)]
        if bad or not self.names:
            given = shortened(",".join(self.names))
            raise RequestError(f"--nodes {given}: give the nodes' host names, such as --nodes hostA,hostB")
        twice = [name for name, count in Counter(self.names).items() if count > 1 and name not in _LOOPBACK]
        if twice:
            raise RequestError(
                f"--nodes {','.join(self.names)!r}: {', '.join(twice)} named twice, and a node is a host of its own; "
                "for more ranks on it raise --ranks-per-node, for a trial of several nodes on this machine repeat "
                "127.0.0.1"
            )
        for flag, limit, value in (
            ("--ranks-per-node", limits.RANKS_PER_NODE, self.ranks_per_node),
            ("--port", limits.PORT, self.port),
            ("--nodes x --ranks-per-node", limits.RANKS, self.slots),
        ):
            limit.check_flag(flag, value)

    @property
    def slots(self) -> int:
        """Places for ranks on all nodes."""
        return len(self.names) * self.ranks_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """What starts a plan's launches; each of the three is enough."""

    static: tuple[str, ...]
    """torchrun, one line a node, in the order of the nodes."""
    c10d: str
    """torchrun with a rendezvous that numbers the nodes itself: the same line on every node."""
    srun: str
    """In a Slurm allocation of these nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A run directory with its plan, and the lines that carry it out."""

    run: RunDir
    plan: Plan
    nodes: Nodes
    lines: Lines
    notes: tuple[str, ...] = ()
    """What of the request is not run as it was given, and why."""


def launcher_lines(nodes: Nodes, run: RunDir) -> Lines:
    """Return the lines for these nodes. Restarts are left to the user: the same line again resumes."""
    count, each, first = len(nodes.names), nodes.ranks_per_node, nodes.names[0]
    loopback = all(name in _LOOPBACK for name in nodes.names)
    env = "GLOO_SOCKET_IFNAME=lo " if loopback else ""
    shape = f"--nnodes={count} --nproc-per-node={each}"
    worker = f"-m ddpbench.worker {shlex.quote(str(run.path.absolute()))}"
    static = tuple(
        f"{env}torchrun {shape} --node-rank={number} --master-addr={first} --master-port={nodes.port} {worker}"
        for number in range(count)
    )
    # Nodes that come and go with torchrun's shared store leave gloo half-connected: a store of each attempt's own.
    own_store = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
    address = f" --local-addr={first}" if loopback else ""
    endpoint = (
        f"--rdzv-backend=c10d --rdzv-endpoint={first}:{nodes.port} --rdzv-id={shlex.quote(run.path.name)}"
    )
    variables = (
        "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID "
        f"MASTER_ADDR={first} MASTER_PORT={nodes.port}"
    )
    step = f"{variables} exec python {worker}"
    return Lines(
        static=static,
        c10d=f"{env}{own_store}torchrun {shape} {endpoint}{address} {worker}",
        srun=f"srun --nodes={count} --ntasks-per-node={each} --kill-on-bad-exit=1 bash -c {shlex.quote(step)}",
    )


def plan_for(
    source: Path, nodes: Nodes, *, overrides: Sequence[str] = (), out: Path | None = None
) -> Planned:
    """Writes a run directory with the experiment's plan for these nodes, and measures nothing.

    World sizes that are `auto` become 1, 2, 4 ... up to the nodes' ranks. Where the experiment does not say
    how many nodes a case has, it gets as few as hold it. A case that does not fit is skipped, with a reason.

    Raises:
        RequestError: the experiment is wrong, nothing of it fits, or the directory cannot be written.
    """
    catalog = TableCatalog(source.parent)
    notes: list[str] = []
    experiment = load_experiment(source, catalog, overrides, on_note=notes.append)
    experiment = with_located(experiment, source.parent)
    hardware = read_hardware()
    here = usable_devices(hardware) if experiment.base.device == "auto" else hardware.devices(gpus=0)
    devices = _devices(experiment, here, nodes)
    free = "nodes" not in experiment.axes and "nodes" not in experiment.base.model_fields_set
    experiment = _under_launcher(resolve(experiment, devices))
    names = own_names(experiment)
    batches = stated_batches(names) if importlib.util.find_spec("torch") is not None else {}
    notes += batch_notes(experiment, batches)
    entries = expand(experiment, TableCatalog(source.parent, batches), devices)
    cases = without_equal(
        [_fitted(entry, nodes, catalog, free=free) for entry in entries], replayed_gradients
    )
    notes += [*sentences(cases), open_words(cases)]
    if all(entry.skip_reason is not None for entry in cases):
        raise RequestError(f"{source}: no case of this experiment fits these nodes\n{skip_reasons(cases)}")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    run = RunDir(checked_name(out) if out is not None else Path("reports") / f"{experiment.name}-{stamp}")
    if run.path.exists() and any(run.path.iterdir()):
        raise OutputError(
            f"{run.path} is not empty; choose another --out, or plan it again with: {_again(run)}"
        )
    plan = make_plan(experiment, cases)
    run.create()
    toml = plan.experiment.to_toml()  # with the seed of the order, where it was drawn
    record = planned_record(nodes.names, nodes.ranks_per_node, nodes.port)
    try:
        write_atomically(run.machine, json.dumps(record, indent=1) + "\n")
        write_atomically(run.experiment, toml)
        write_atomically(run.plan, plan.dumps())
        make_job_key(run)
    except OSError as error:
        shutil.rmtree(run.path, ignore_errors=True)  # nothing but what was just begun
        raise OutputError(f"{run.path} cannot be written: {explain_os_error(error)}") from None
    notes.append(crossed_words(experiment, [(entry.case.world_size, entry.case.nodes) for entry in cases]))
    told = tuple(filter(None, notes))
    return Planned(run=run, plan=plan, nodes=nodes, lines=launcher_lines(nodes, run), notes=told)


def lines_of(run: RunDir, **changes: Any) -> Lines:
    """Return the lines of a directory that is planned already, with `changes` to the nodes it was planned for.

    Raises:
        RequestError: it is not a run directory, or not one for a launcher.
    """
    context = read_machine(run).get("context", {})
    try:
        planned = Nodes(
            names=tuple(context["planned_nodes"]),
            ranks_per_node=context["planned_ranks_per_node"],
            port=context["planned_port"],
        )
    except KeyError:
        raise RequestError(
            f"{run.path} was measured by ddpbench sweep, which also resumes it; plan the experiment itself"
        ) from None
    with contextlib.suppress(OSError):  # the job says that it has none
        make_job_key(run)  # one planned by an older version
    return launcher_lines(replace(planned, **changes), run)


def _again(run: RunDir) -> str:
    return command("ddpbench", "plan", run.path)


def _devices(experiment: Experiment, here: Devices, nodes: Nodes) -> Devices:
    """Return what `auto` resolves against: as many ranks as the nodes have places, each with a device of its own."""
    base = experiment.base
    kind = here.kind if base.device == "auto" else base.device
    return Devices(
        kind=kind,
        gpus=nodes.slots if kind == "cuda" else 0,
        cores=nodes.slots * base.threads_per_rank,
    )


def _under_launcher(experiment: Experiment) -> Experiment:
    axes = {name: values for name, values in experiment.axes.items() if name != "launcher"}
    base = experiment.base.model_copy(update={"launcher": "torchrun"})
    return experiment.model_copy(update={"base": base, "axes": axes})


def _fitted(entry: PlannedCase, nodes: Nodes, catalog: Catalog, *, free: bool) -> PlannedCase:
    """Return the planned case on these nodes: laid out on as few as hold it if that is `free`, or skipped."""
    if entry.skip_reason is not None:
        return entry
    case, one_process = entry.case, catalog.strategy(entry.case.strategy).one_process
    if free and not one_process:
        case = _on_fewest(case, nodes)
    reason = _reason(case, nodes, one_process=one_process)
    # Whether it is oversubscribed is known when the nodes' cores are: the leading slot fills it in.
    return replace(entry, case=case, skip_reason=reason, oversubscribed=False)


def _on_fewest(case: Case, nodes: Nodes) -> Case:
    count = -(-case.world_size // nodes.ranks_per_node)
    while count <= len(nodes.names) and case.world_size % count:
        count += 1
    if count > len(nodes.names):
        return case
    return replace(case, nodes=count, ranks_per_node=case.world_size // count)


def _reason(case: Case, nodes: Nodes, *, one_process: bool) -> str | None:
    """Return why a case does not fit, or None."""
    shape = f"{len(nodes.names)} x {nodes.ranks_per_node} (nodes x ranks)"
    if one_process:
        if case.nodes > 1:
            return f"{case.strategy} is one process, which cannot stand on {case.nodes} nodes"
        if case.world_size > nodes.ranks_per_node:
            return f"{case.world_size} replicas in one process, planned for {nodes.ranks_per_node} a node"
        return None
    if case.nodes > len(nodes.names) or case.ranks_per_node > nodes.ranks_per_node:
        return f"needs {case.nodes} x {case.ranks_per_node} (nodes x ranks); planned for {shape}"
    return None
