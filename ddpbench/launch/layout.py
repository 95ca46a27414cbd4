"""Plan an experiment for nodes on which torchrun or Slurm starts the ranks, and return the command lines to run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpbench.errors import OutputError, RequestError
from ddpbench.host_names import why_no_host
from ddpbench.launch.external import JobShape, planned_for, write_run
from ddpbench.launch.plan import Plan, make_plan
from ddpbench.machine.identity import planned_record
from ddpbench.records import RunDir
from ddpbench.records.job_key import make_job_key
from ddpbench.records.machine import read_machine
from ddpbench.records.rundir import check_own, checked_name, default_path
from ddpbench.runtime.launched import SAFE_PATH
from ddpbench.spec import limits
from ddpbench.text_safety import command, quoted, shortened

DEFAULT_PORT = 29500
SLURM_PLACE = "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID"
"""Shell assignments that set a process's variables, such as RANK, from the variables that srun sets for its task."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_names(names: Sequence[str], *, twice: str = "") -> None:
    """Check the host names of `--nodes`; `twice` is advice for a name that is given twice.

    Raises:
        RequestError: no name is given, a name cannot be a host name, or a name other than `localhost` is given twice.
    """
    bad = [name for name in names if not name or name.isdecimal() or name != quoted(name)]
    if bad or not names:
        given = shortened(",".join(names))
        raise RequestError(f"--nodes {given}: give the nodes' host names, such as --nodes hostA,hostB")
    for name in names:
        if why := why_no_host(name):
            raise RequestError(f"--nodes: {shortened(name)} is not a host name: {why}")
    again = [name for name, count in Counter(names).items() if count > 1 and name not in _LOOPBACK]
    if again:
        raise RequestError(
            f"--nodes {','.join(names)!r}: {', '.join(again)} is named twice, but each node must be a separate "
            f"host{twice}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The nodes to plan for. Ranks meet at `port` of the first node."""

    names: tuple[str, ...]
    ranks_per_node: int = 1
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        check_names(
            self.names,
            twice=". For more ranks per node raise --ranks-per-node; to try several nodes on this machine repeat "
            "127.0.0.1",
        )
        for flag, limit, value in (
            ("--ranks-per-node", limits.RANKS_PER_NODE, self.ranks_per_node),
            ("--port", limits.PORT, self.port),
            ("--nodes x --ranks-per-node", limits.RANKS, self.slots),
        ):
            limit.check_flag(flag, value)

    @property
    def slots(self) -> int:
        """Number of ranks that fit on all nodes."""
        return len(self.names) * self.ranks_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """The command lines that start a plan's launches, in three alternative forms."""

    static: tuple[str, ...]
    """For torchrun, one line per node, in the order of the nodes."""
    c10d: str
    """For torchrun with a rendezvous that assigns node numbers, the same line on every node."""
    srun: str
    """For srun in a Slurm allocation of these nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A run directory with its plan, and the command lines that run it."""

    run: RunDir
    plan: Plan
    nodes: Nodes
    lines: Lines
    notes: tuple[str, ...] = ()
    """Sentences on what is not run as requested, with reasons."""


def launcher_lines(nodes: Nodes, run: RunDir) -> Lines:
    """Return the command lines for these nodes. Running one of them again resumes the run."""
    count, each, first = len(nodes.names), nodes.ranks_per_node, nodes.names[0]
    loopback = all(name in _LOOPBACK for name in nodes.names)
    env = "GLOO_SOCKET_IFNAME=lo " if loopback else ""
    torchrun = f"{SAFE_PATH}=1 torchrun --nnodes={count} --nproc-per-node={each}"
    # Without -P, or its variable for torchrun, Python looks for every module in the working directory first.
    worker = f"-m ddpbench.worker {quoted(str(run.path.absolute()))}"
    static = tuple(
        f"{env}{torchrun} --node-rank={number} --master-addr={first} --master-port={nodes.port} {worker}"
        for number in range(count)
    )
    # Nodes that join and leave torchrun's shared store leave gloo half-connected: use a separate store per attempt.
    own_store = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
    address = f" --local-addr={first}" if loopback else ""
    endpoint = f"--rdzv-backend=c10d --rdzv-endpoint={first}:{nodes.port} --rdzv-id={quoted(run.path.name)}"
    meet = f"MASTER_ADDR={first} MASTER_PORT={nodes.port}"
    return Lines(
        static=static,
        c10d=f"{env}{own_store}{torchrun} {endpoint}{address} {worker}",
        srun=f"{srun(count, each)} bash -c {quoted(f'{SLURM_PLACE} {meet} exec python -P {worker}')}",
    )


def srun(nodes: int, ranks_per_node: int) -> str:
    """Return the srun command that starts one process per rank, called a slot, in a Slurm allocation.

    If one slot fails, srun ends all. Slots get the command's environment. Slurm does not bind slots; they divide their
    node's cores among their ranks. So no cores per task are requested, which would limit the step from Slurm 22.05 on.
    """
    return (
        f"srun --nodes={nodes} --ntasks={nodes * ranks_per_node} --ntasks-per-node={ranks_per_node} "
        "--kill-on-bad-exit=1 --export=ALL --cpu-bind=none"
    )


def plan_for(
    source: Path, nodes: Nodes, *, overrides: Sequence[str] = (), out: Path | None = None
) -> Planned:
    """Write a run directory with the experiment's plan for these nodes, and measure nothing.

    Raises:
        RequestError: the experiment is invalid, none of its cases fits, or the directory cannot be written.
    """
    shape = JobShape(len(nodes.names), nodes.ranks_per_node)
    planned = planned_for(source, shape, launcher="torchrun", overrides=overrides)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = checked_name(out) if out is not None else default_path(f"{planned.experiment.name}-{stamp}")
    run = RunDir(path)
    if run.path.exists() and any(run.path.iterdir()):
        raise OutputError(
            f"{run.path} is not empty; choose another --out, or plan it again with: {_again(run)}"
        )
    plan = make_plan(planned.experiment, planned.cases)
    write_run(run, plan, planned_record(nodes.names, nodes.ranks_per_node, nodes.port))
    return Planned(run=run, plan=plan, nodes=nodes, lines=launcher_lines(nodes, run), notes=planned.notes)


def lines_of(run: RunDir, **changes: Any) -> Lines:
    """Return the command lines of a planned run directory; `changes` replace fields of its `Nodes`.

    Raises:
        RequestError: this is not a run directory, or the run was not planned for a launcher.
    """
    context = read_machine(run).get("context", {})
    try:
        planned = Nodes(
            names=tuple(context["planned_nodes"]),
            ranks_per_node=context["planned_ranks_per_node"],
            port=context["planned_port"],
        )
    except KeyError:
        if "submitted_nodes" in context:
            again = command("ddpbench", "submit", run.path.parent)
            raise RequestError(f"{run.path} belongs to Slurm jobs: {again}") from None
        raise RequestError(
            f"{run.path} was made by ddpbench sweep: resume it with ddpbench sweep, or plan its experiment"
        ) from None
    with contextlib.suppress(OSError, OutputError):  # reported when the job runs
        check_own(run.path)
        make_job_key(run)  # an older version planned the run
    return launcher_lines(replace(planned, **changes), run)


def _again(run: RunDir) -> str:
    return command("ddpbench", "plan", run.path)
