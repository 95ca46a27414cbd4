"""Run Slurm's commands and parse their output."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpbench.errors import LaunchError, RequestError, nearest
from ddpbench.launch.slurm.request import parse_time
from ddpbench.text_safety import shortened

ASK_S = 60.0
"""Time limit of a Slurm command, seconds; a command waits while the controller is away."""
_ACTIVE = frozenset(
    [
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESIZING",
        "RESV_DEL_HOLD",
        "SIGNALING",
        "SPECIAL_EXIT",
        "STAGE_OUT",
        "STOPPED",
        "SUSPENDED",
    ]
)
GONE = "GONE"
"""State of a job that the controller has forgotten, on a cluster without accounting."""


_NO_ANSWER = (
    "contact slurm controller",
    "timed out",
    "communication",
    "connection refused",
    "zero bytes were",
)
"""Parts of messages of sbatch that say that the controller is away or busy; it may still have received the script."""


class UnreachableError(LaunchError):
    """Slurm does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """A job's state in Slurm, the reason why it waits, and its nodes."""

    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def active(self) -> bool:
        """True if the job waits or runs, or will do so again."""
        return self.state in _ACTIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A partition's number of nodes and longest time limit in seconds (None: unlimited)."""

    name: str
    nodes: int
    time_s: float | None
    default: bool


_VARIABLES = {"time": "TIMELIMIT", "array": "ARRAY_INX"}
"""Options of sbatch whose environment variables have a different name than the option."""
_NEVER = frozenset(
    [
        *("ARRAY_INX", "CLUSTERS", "ERROR", "NO_REQUEUE", "NTASKS", "OPEN_MODE", "OUTPUT", "REQUEUE", "WAIT"),
        *("IGNORE_PBS", "QUIET"),
    ]
)
"""Names without SBATCH_ of variables that are never passed on, because submissions rely on the options' defaults."""


def environment(script: Path | None) -> dict[str, str]:
    """Return this process's environment without the variables that would override the options in a script.

    SLURM_ variables except SLURM_CONF are removed, because a job may have set them. SBATCH_ variables are removed if
    the script sets the same option, or if they are in `_NEVER`.
    """
    text = script.read_text(encoding="utf-8") if script is not None else ""
    names = re.findall(r"^#SBATCH --([a-z0-9-]+)", text, flags=re.MULTILINE)
    own = {_VARIABLES.get(name, name.upper().replace("-", "_")) for name in names} | _NEVER
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF"
        or not (name.startswith("SLURM_") or (name.startswith("SBATCH_") and name[len("SBATCH_") :] in own))
    }


def _asked(argv: Sequence[str], script: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command; `script` is the script that it submits, if any.

    Raises:
        UnreachableError: the command cannot be run, or does not answer within `ASK_S`.
    """
    env = environment(script)
    who = "accounts (slurmdbd) do" if argv[0] == "sacct" else "controller (slurmctld) does"
    try:
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, errors="replace", timeout=ASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{argv[0]}: Slurm's {who} not answer") from None
    except OSError as error:
        raise UnreachableError(f"{argv[0]} cannot be run: {error.strerror}") from None


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    text = done.stderr or done.stdout
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines))) or f"exit code {done.returncode}"


def check_here() -> None:
    """Check that jobs can be submitted from this machine.

    Raises:
        RequestError: Slurm's commands are not installed here.
    """
    missing = [name for name in ("sbatch", "squeue", "sinfo", "scontrol") if shutil.which(name) is None]
    if missing:
        raise RequestError(
            f"{', '.join(missing)} not on PATH: submit on a login node of a Slurm cluster, after "
            "loading its module. Anywhere else, --dry-run prints the scripts, and ddpbench plan prints "
            "lines for other launchers"
        )


def partitions() -> tuple[Partition, ...]:
    """Return the cluster's partitions.

    Raises:
        UnreachableError: Slurm does not answer.
    """
    done = _asked(["sinfo", "-a", "-h", "-o", "%P|%D|%l"])
    if done.returncode:
        raise UnreachableError(f"sinfo: {_complaint(done)}")
    by_name: dict[str, Partition] = {}
    for line in done.stdout.splitlines():
        name, _, rest = line.strip().partition("|")
        count, _, limit = rest.partition("|")
        if not count.isdecimal():
            continue
        default, name = name.endswith("*"), name.removesuffix("*")
        nodes = int(count) + (by_name[name].nodes if name in by_name else 0)
        by_name[name] = Partition(name=name, nodes=nodes, time_s=_limit(limit), default=default)
    return tuple(by_name.values())


def _limit(text: str) -> float | None:
    try:
        return parse_time(text)
    except RequestError:  # infinite, or not reported
        return None


def check_room(known: Sequence[Partition], asked: str | None, most_nodes: int, time_s: float) -> None:
    """Check that a requested partition can run a job on `most_nodes` nodes for `time_s` seconds.

    `known` are the cluster's partitions. `asked` has the requested partitions, separated by commas; None means the
    default.

    Raises:
        RequestError: a partition is unknown, or no partition has enough nodes or a long enough time limit.
    """
    by_name = {one.name: one for one in known}
    names = asked.split(",") if asked else [one.name for one in known if one.default]
    for name in names:
        if name not in by_name:
            raise RequestError(
                f"--partition {shortened(name)}: Slurm has no such partition; {nearest(name, by_name)}"
            )
    chosen = [by_name[name] for name in names]
    if not chosen:
        return  # without a default, sbatch reports what it needs
    if (most := max(one.nodes for one in chosen)) < most_nodes:
        raise RequestError(
            f"--nodes {most_nodes}: the partition {', '.join(names)} has {most} node{'s' if most != 1 else ''}"
        )
    limits = [one.time_s for one in chosen if one.nodes >= most_nodes]
    longest = None if None in limits else max(limit for limit in limits if limit is not None)
    if longest is not None and time_s > longest:
        raise RequestError(
            f"--time: the jobs ask for {math.ceil(time_s / 60)} min, but the limit of partition "
            f"{', '.join(names)} is {longest / 60:.0f} min. With --time {longest / 60:.0f}, unfinished jobs are "
            "submitted again as often as needed"
        )


def would_run(script: Path) -> str:
    """Have sbatch check a script without submitting it; return the partition of the job, or an empty text if unknown.

    Raises:
        RequestError: sbatch refuses the script; the message has sbatch's reason.
        UnreachableError: sbatch does not answer.
    """
    done = _asked(["sbatch", "--test-only", str(script.absolute())], script)
    if done.returncode:
        _refused(script, done)
    match = re.search(r" in partition (\S+)", done.stderr + done.stdout)
    return match[1] if match else ""


def submit(script: Path) -> str:
    """Submit a script and return the job's id.

    Raises:
        RequestError: sbatch refuses the script.
        UnreachableError: sbatch does not answer.
    """
    done = _asked(["sbatch", "--parsable", str(script.absolute())], script)
    job_id = done.stdout.strip().partition(";")[0]
    if done.returncode or not job_id.isdecimal():
        _refused(script, done)
    return job_id


def _refused(script: Path, done: subprocess.CompletedProcess[str]) -> None:
    complaint = _complaint(done)
    if any(words in complaint.lower() for words in _NO_ANSWER):
        raise UnreachableError(f"sbatch: {complaint}")
    raise RequestError(f"sbatch refuses {script}: {complaint}")


def states(jobs: Mapping[str, Path]) -> dict[str, JobState]:
    """Return the state of each job in Slurm, by id.

    `jobs` maps ids to scripts. The script distinguishes a job from a later job to which Slurm gave the same id.

    Raises:
        UnreachableError: Slurm does not answer.
    """
    if not jobs:
        return {}
    queue = _queue()
    by_id: dict[str, JobState] = {}
    for job_id, script in jobs.items():
        state, made_of = queue.get(job_id, (None, ""))
        by_id[job_id] = state if state and _place(made_of) == _place(script) else _ended(job_id)
    return by_id


def strays(scripts: Collection[Path], known: Collection[str]) -> dict[Path, str]:
    """Return the ids of active jobs that run one of these scripts and are not in `known`, by script.

    The submitting process may have been killed before it recorded them.

    Raises:
        UnreachableError: Slurm does not answer.
    """
    by_place = {_place(script): script for script in scripts}
    return {
        by_place[_place(made_of)]: job_id
        for job_id, (state, made_of) in _queue().items()
        if _place(made_of) in by_place and job_id not in known and state.active
    }


def _place(script: Path | str) -> str:
    """Resolve links in a script's path, which Slurm may report by another name."""
    return os.path.realpath(script)


def _queue() -> dict[str, tuple[JobState, str]]:
    """Return the state and the script of each of the user's jobs in squeue, by id."""
    done = _asked(["squeue", "-h", "-t", "all", "-o", "%i|%T|%N|%r|%o", f"--user={os.getuid()}"])
    if done.returncode:
        raise UnreachableError(f"squeue: {_complaint(done)}")
    queue: dict[str, tuple[JobState, str]] = {}
    for line in done.stdout.splitlines():
        job_id, *parts = line.strip().split("|", 4)
        if len(parts) == 4:
            state, nodes, reason = ("" if part in ("N/A", "None") else part for part in parts[:-1])
            queue[job_id] = (JobState(state=state, reason=reason, nodes=nodes), parts[-1])
    return queue


def _ended(job_id: str) -> JobState:
    """Return the final state of a job from Slurm's accounting; `GONE` if it has no record."""
    if shutil.which("sacct") is not None:
        done = _asked(["sacct", "-n", "-X", "-P", "-j", job_id, "-o", "State,NodeList"])
        state, _, nodes = done.stdout.strip().partition("\n")[0].partition("|")
        if done.returncode == 0 and state:
            return JobState(state=state.split()[0], nodes="" if nodes.startswith("None") else nodes)
    return JobState(state=GONE)
