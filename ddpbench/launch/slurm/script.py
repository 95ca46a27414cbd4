"""A job's sbatch script, which users can read, change and submit by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddpbench.launch.external import JobShape
from ddpbench.launch.layout import SLURM_PLACE, srun
from ddpbench.launch.slurm.disks import MARK, unpacking
from ddpbench.launch.slurm.request import Request, slurm_time
from ddpbench.launch.slurm.words import for_sbatch, for_shell, job_output, one_line
from ddpbench.units import counted

FIRST_PORT, PORTS = 20_000, 12_000
"""Ports of jobs, below the range from 32,768 that Linux uses for connections."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """The parts of the command that starts a job's processes, one per rank, which are called slots."""

    python: str
    again: str
    """The ddpbench command that follows the job, which the script has in a comment."""
    retry_failed: bool = False
    local: str = ""
    """The run directory on each node's own disk, as a shell word; empty if the nodes share a directory.

    If it is not empty, the caller appends the packed run directory to the script.
    """


def job_script(
    run_dir: Path,
    name: str,
    shape: JobShape,
    request: Request,
    *,
    cpus: int | None,
    time_s: float,
    slots: Slots,
) -> str:
    """Return the script of the job that runs the plan of `run_dir` in an allocation of the given shape.

    `name` is the job's name, `cpus` the number of cores per rank (None for Slurm's default) and `time_s` the time limit
    in seconds. If Slurm or a user starts the job again, it continues with the remaining launches.

    Raises:
        RequestError: a value has a line break or another control character, which a script cannot hold.
    """
    local = slots.local
    options = _options(run_dir, name, shape, request, cpus=cpus, time_s=time_s, local=bool(local))
    flag = " --retry-failed" if slots.retry_failed else ""
    own = for_shell("the submission's directory", str(run_dir))
    worker = f"{for_shell('the Python', slots.python)} -P -m ddpbench.worker {local or own}{flag}"
    nodes = f"{counted(shape.nodes, 'node')} of {counted(shape.ranks_per_node, 'rank')}"
    lines = [
        "#!/bin/bash",
        f"# Measures what this run directory plans for {nodes}. To follow it:",
        f"#   {one_line('the command', slots.again)}",
        "# Submitted again, however it ended, it continues with the remaining launches.",
        *(_directive(key, value) for key, value in options),
        "",
        *(
            ["set -e  # a job without these would measure something else", *request.setup, "set +e", ""]
            if request.setup
            else []
        ),
        *(unpacking(local, shape.nodes) if local else []),
        "# The slots of the job meet at its first node.",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "MASTER_ADDR=$(scontrol -o show node \"$first\" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')",
        f"MASTER_PORT={_port(request)}",
        'export MASTER_ADDR="${MASTER_ADDR:-$first}" MASTER_PORT',
        "",
        f"{srun(shape.nodes, shape.ranks_per_node)} --mpi=none bash -c \\",
        f"  {for_shell('the command', f'{SLURM_PLACE} exec {worker}')}",
        *(["exit", MARK] if local else []),
        "",
    ]
    return "\n".join(lines)


def _options(
    run_dir: Path,
    name: str,
    shape: JobShape,
    request: Request,
    *,
    cpus: int | None,
    time_s: float,
    local: bool,
) -> list[tuple[str, str | None]]:
    """Return sbatch's options; a user's option replaces ddpbench's of the same name."""
    options: list[tuple[str, str | None]] = [
        ("job-name", name),
        ("nodes", str(shape.nodes)),
        ("ntasks-per-node", str(shape.ranks_per_node)),
        *([] if cpus is None else [("cpus-per-task", str(cpus))]),
        ("time", slurm_time(time_s)),
        ("output", "/dev/null" if local else job_output(str(run_dir))),
        ("open-mode", "append"),
        ("no-requeue" if local else "requeue", None),  # the packed run is as old as its submission
    ]
    given = [(option.name, option.value) for option in request.options]
    replaced = {key for key, _ in given} | (
        {"requeue", "no-requeue"} if any(key in ("requeue", "no-requeue") for key, _ in given) else set()
    )
    return [*((key, value) for key, value in options if key not in replaced), *given]


def _port(request: Request) -> str:
    return str(request.port) if request.port is not None else f"$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"


def _directive(key: str, value: str | None) -> str:
    return f"#SBATCH --{key}" if value is None else f"#SBATCH --{key}={for_sbatch(f'--{key}', value)}"
