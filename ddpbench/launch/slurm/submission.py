"""A submission: a directory that has a run and a script for each number of nodes, and a list of submitted jobs."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from ddpbench.errors import OutputError, RequestError
from ddpbench.launch.external import JobShape, PlannedFor, planned_for, write_run
from ddpbench.launch.plan import Plan, make_plan
from ddpbench.launch.slurm import disks
from ddpbench.launch.slurm.request import Option, Request
from ddpbench.launch.slurm.script import Slots, job_script
from ddpbench.launch.slurm.words import job_name, one_line
from ddpbench.machine.identity import submitted_record
from ddpbench.records import SCHEMA_VERSION, LaunchDir, RunDir, write_atomically
from ddpbench.records.checked import check
from ddpbench.records.files import MOST_OUTCOME, damaged, parse_json, read_bytes
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.records.rundir import checked_name, default_path, explain_os_error
from ddpbench.records.submission_dir import SubmissionDir, check_free_for_submission
from ddpbench.spec import Case, PlannedCase, limits
from ddpbench.spec.overrides import whole_keys
from ddpbench.text_safety import command, shortened

SCRIPT = "job.sbatch"
_START_S = 300.0
"""Time that a job's limit leaves for importing torch, perhaps from a slow file system, and for connecting, seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedJob:
    """A submitted job, and its run's launches (with proofs) and sessions when it was submitted.

    Without a shared directory, `nodes` names the nodes of the job, and `fetched` says whether its final records were
    fetched.
    """

    job_id: str
    launches: int = 0
    sessions: int = 0
    nodes: str = ""
    fetched: bool = False


@dataclass(kw_only=True, slots=True)
class SubmittedSize:
    """The part of a submission for one number of nodes: its run, and its submitted jobs in order of submission."""

    shape: JobShape
    run: RunDir
    estimated_s: float
    """Estimated time of all launches of this size, seconds."""
    jobs: list[SubmittedJob] = field(default_factory=list)

    @property
    def script(self) -> Path:
        """The path of the job's script."""
        return self.run.path / SCRIPT

    @property
    def name(self) -> str:
        """The number of nodes in words, such as `2 nodes`."""
        return "1 node" if self.shape.nodes == 1 else f"{self.shape.nodes} nodes"

    def launches(self) -> int:
        """Return how many launches have ended, without proofs."""
        return sum(1 for path in self._outcomes() if not path.parent.name.startswith("proof"))

    def finished(self) -> int:
        """Return how many launches and proofs have ended. Those that were set aside to be repeated do not count."""
        return len(self._outcomes())

    def _outcomes(self) -> list[Path]:
        outcomes = self.run.path.glob("cases/*/*/outcome.json")
        return [
            path
            for path in outcomes
            if path.parent.name == "proof" or LaunchDir(path.parent).number is not None
        ]

    def promised(self) -> int:
        """Return how many launches the plan's fewest rounds have, without proofs."""
        plan = read_plan(self.run)
        return plan.budget.rounds_min * sum(entry.skip_reason is None for entry in plan.cases)

    def has_failed(self) -> bool:
        """Return whether any launch or proof ended with a status other than ok.

        Raises:
            UnreadableError: an outcome is a link, a pipe, a device or too large.
        """
        return any(b'"status": "ok"' not in read_bytes(path, MOST_OUTCOME) for path in self._outcomes())

    def output(self, job_id: str) -> Path:
        """Return the path of the file that a job prints to."""
        return self.run.path / f"slurm-{job_id}.out"


def new_key() -> str:
    """Return 128 random bits as hexadecimal digits."""
    return secrets.token_hex(16)


@dataclass(kw_only=True, slots=True)
class Submission:
    """A submission. Its directory may not have been written yet. `asked` records what the user requested."""

    path: Path
    sizes: list[SubmittedSize]
    asked: Mapping[str, Any]
    request: Request
    key: str = field(default_factory=new_key)
    """Random part of the names of folders on the nodes' own disks, which other users cannot guess."""
    plans: Mapping[int, Plan] = field(default_factory=dict)
    """Plans yet to be written, by number of nodes; empty if the submission exists."""
    notes: tuple[str, ...] = ()

    @property
    def again(self) -> str:
        """The command that continues the submission."""
        return command("ddpbench", "submit", self.path)

    def save(self) -> None:
        """Write submission.json.

        Raises:
            OutputError: the file cannot be written.
        """
        sizes = [
            {
                "nodes": size.shape.nodes,
                "ranks_per_node": size.shape.ranks_per_node,
                "run": size.run.path.name,
                "estimated_s": round(size.estimated_s, 1),
                "jobs": [
                    {
                        "job_id": job.job_id,
                        "launches": job.launches,
                        "sessions": job.sessions,
                        **({"nodes": job.nodes, "fetched": job.fetched} if job.nodes else {}),
                    }
                    for job in size.jobs
                ],
            }
            for size in self.sizes
        ]
        slurm = {
            "time_s": self.request.time_s,
            "options": [[option.name, option.value] for option in self.request.options],
            "setup": list(self.request.setup),
            "port": self.request.port,
            "local": self.request.local,
            "key": self.key,
        }
        data = {"schema_version": SCHEMA_VERSION, "asked": self.asked, "slurm": slurm, "sizes": sizes}
        try:
            write_atomically(SubmissionDir(self.path).file, json.dumps(data, indent=1) + "\n")
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {explain_os_error(error)}") from None


def plan_submission(
    source: Path, request: Request, *, overrides: Sequence[str] = (), out: Path | None = None
) -> Submission:
    """Plan the submission of an experiment, or read it if its directory exists. Nothing is written.

    A case runs in the smallest allocation that is large enough. The base case of a speed-up runs in each allocation
    that has a case of its curve, on the same nodes and in the same rounds.

    Raises:
        RequestError: the experiment is invalid, none of its cases fits, or the directory holds a different submission.
    """
    largest = JobShape(request.sizes[-1], request.ranks_per_node)
    planned = planned_for(source, largest, launcher="slurm", overrides=overrides)
    _check_device(request, planned, overrides)
    path = checked_name(out if out is not None else default_path(f"{planned.experiment.name}-slurm"))
    if "\\" in one_line("--out", str(path.absolute())):
        raise OutputError(
            "the directory's path has a backslash, which is special to Slurm: choose another --out"
        )
    asked = {
        "experiment": str(source.absolute()),
        "experiment_digest": hashlib.sha256(source.read_bytes()).hexdigest()[:16],
        "overrides": list(overrides),
        "sizes": list(request.sizes),
        "ranks_per_node": request.ranks_per_node,
    }
    try:
        parse_json(json.dumps(asked))  # it must be readable later
    except ValueError as error:
        raise RequestError(f"the experiment's path, or a --set, holds {error}") from None
    notes = [*planned.notes]
    if SubmissionDir(path).is_there:
        existing = open_submission(path)
        _check_same(existing, asked)
        return replace(existing, request=request, notes=tuple(notes))
    check_free_for_submission(path)
    sizes, plans = [], {}
    for nodes in request.sizes:
        cases = _cases_of(nodes, request.sizes, planned)
        if all(entry.skip_reason is not None for entry in cases):
            notes.append(
                f"no job on {nodes} node{'s' if nodes != 1 else ''}: no case needs exactly this number "
                "of nodes"
            )
            continue
        plan = plans[nodes] = make_plan(planned.experiment, cases)
        sizes.append(
            SubmittedSize(
                shape=JobShape(nodes, request.ranks_per_node),
                run=SubmissionDir(path).run(nodes),
                estimated_s=plan.estimate_s(plan.budget.rounds_max),
            )
        )
    return Submission(path=path, sizes=sizes, asked=asked, request=request, plans=plans, notes=tuple(notes))


def _check_device(request: Request, planned: PlannedFor, overrides: Sequence[str]) -> None:
    """Check that jobs that request GPUs would use them: on a login node, `auto` may mean CPUs.

    Raises:
        RequestError: GPUs are requested, all cases use CPUs, and no override sets base.device.
    """
    asks = [one for one in request.options if one.name.startswith("gpu") or "gpu" in (one.value or "")]
    asks = [one for one in asks if one.name.startswith("gpu") or one.name in ("gres", "tres-per-task")]
    said = any("base.device" in whole_keys(text) for text in overrides)
    if asks and not said and all(entry.case.device == "cpu" for entry in planned.cases):
        raise RequestError(
            f"--{asks[0].name} asks for GPUs, but the cases are planned for CPUs, because this machine "
            "has no GPU: add --set base.device=cuda (or base.device=cpu to keep CPUs)"
        )


def _check_same(found: Submission, asked: Mapping[str, Any]) -> None:
    """Check that the existing submission is of the same experiment on the same nodes.

    Raises:
        RequestError: the submissions differ; the message names the differences.
    """
    words = {
        "experiment": "experiment",
        "experiment_digest": "text of the experiment",
        "overrides": "--set",
        "sizes": "--nodes",
        "ranks_per_node": "--ranks-per-node",
    }
    differing = [name for key, name in words.items() if found.asked.get(key) != asked[key]]
    if differing:
        raise RequestError(
            f"{found.path} holds a submission with another {', '.join(differing)}: choose another "
            f"--out, or continue that submission: {found.again}"
        )


def _cases_of(nodes: int, sizes: Sequence[int], planned: PlannedFor) -> list[PlannedCase]:
    """Return the cases for `nodes` nodes, the fewest in `sizes` with room, and their base cases.

    Skipped cases belong to the largest number.
    """

    def home(entry: PlannedCase) -> int:
        if entry.skip_reason is not None:
            return sizes[-1]
        return min(size for size in sizes if size >= entry.case.nodes)

    own = [entry for entry in planned.cases if home(entry) == nodes]
    wanted = {entry.case.baseline().case_id for entry in own if entry.skip_reason is None}
    there = {entry.case.case_id for entry in own}
    return own + [entry for entry in planned.cases if entry.case.case_id in wanted - there]


def time_limit_s(total_s: float, estimated_s: float) -> float:
    """Return the time limit of a job, seconds: twice its launches' estimate, plus time to start up.

    Twice the estimate is at most `total_s` (`budget.total`), after which the job ends by itself.
    """
    return _START_S + min(total_s, 2 * estimated_s)


def write_submission(submission: Submission) -> None:
    """Write the submission's directory with its runs and plans. If the submission exists, write only submission.json.

    Raises:
        OutputError: a file cannot be written.
    """
    for size in submission.sizes:
        plan = submission.plans.get(size.shape.nodes)
        if plan is not None:
            write_run(size.run, plan, submitted_record(size.shape.nodes, size.shape.ranks_per_node))
    submission.save()


def current(submission: Submission) -> Submission:
    """Return the submission as it is now stored, but with the request of `submission`. The directory must be locked.

    A submission that is not stored yet is returned unchanged.

    Raises:
        RequestError: the submission is new, but a different one has been stored in the directory meanwhile.
        IdentityError: the directory's file is damaged.
    """
    if not SubmissionDir(submission.path).is_there:
        return submission
    if submission.plans:
        raise RequestError(
            f"another command has just made a submission in {submission.path}; to continue it: "
            f"{submission.again}"
        )
    return replace(open_submission(submission.path), request=submission.request, notes=submission.notes)


def plan_of(submission: Submission, size: SubmittedSize) -> Plan | StoredPlan:
    """Return the plan for one number of nodes: the submission's new plan, or the existing run's plan.

    Raises:
        RequestError: an existing run cannot be read.
    """
    return submission.plans.get(size.shape.nodes) or read_plan(size.run)


def time_of(submission: Submission, size: SubmittedSize, plan: Plan | StoredPlan) -> float:
    """Return the time limit of a job (s): the requested limit, or else the result of `time_limit_s`."""
    given = submission.request.time_s
    return time_limit_s(plan.budget.total, size.estimated_s) if given is None else given


def needs(submission: Submission) -> dict[int, float]:
    """Return the time limit (s) of each job that is still to be submitted, by the job's number of nodes.

    Raises:
        RequestError: an existing run cannot be read.
    """
    return {
        size.shape.nodes: time_of(
            submission, size, submission.plans.get(size.shape.nodes) or read_plan(size.run)
        )
        for size in submission.sizes
        if not size.jobs
    }


def _cpus(cases: Sequence[Case]) -> int | None:
    """Return the most cores that a rank needs for threads and loader workers; None on GPUs."""
    if any(case.device == "cuda" for case in cases):
        return None
    return max((case.threads_per_rank + case.loader_workers for case in cases), default=None)


def scripts(submission: Submission, *, retry_failed: bool = False) -> dict[int, str]:
    """Return the script of each job, by its number of nodes.

    Raises:
        RequestError: an existing run cannot be read.
    """
    found, request = {}, submission.request
    name = Path(str(submission.asked.get("experiment", ""))).stem
    for size in submission.sizes:
        plan = plan_of(submission, size)
        cases = [entry.case for entry in plan.cases if entry.skip_reason is None]
        found[size.shape.nodes] = job_script(
            size.run.path.absolute(),
            job_name(name, size.shape.nodes),
            size.shape,
            request,
            cpus=_cpus(cases),
            time_s=time_of(submission, size, plan),
            slots=Slots(
                python=sys.executable,
                again=command("ddpbench", "submit", submission.path.absolute()),
                retry_failed=retry_failed,
                local=local_place(submission, size) if request.local else "",
            ),
        )
    return found


def local_place(submission: Submission, size: SubmittedSize) -> str:
    """Return the path of a run directory on the nodes' own disks, as a shell word that the nodes' shells expand."""
    return disks.place(submission.request.local, submission.key, size.shape.nodes)


def write_script(size: SubmittedSize, text: str) -> None:
    """Write a job's script into its run directory. If `text` ends with `disks.MARK`, append the packed run directory.

    Raises:
        OutputError: the script cannot be written, or the run cannot be read.
        RequestError: the packed run is too large for a script.
    """
    packed = disks.archive(size.run.path) if text.endswith(f"\n{disks.MARK}\n") else ""
    try:
        write_atomically(size.script, text + packed, private=bool(packed))  # the packed run has the job's key
    except OSError as error:
        raise OutputError(f"{size.script} cannot be written: {explain_os_error(error)}") from None


def write_scripts(submission: Submission, texts: Mapping[int, str]) -> None:
    """Write the scripts, given by number of nodes, into their run directories.

    Raises:
        OutputError: a script cannot be written, or a run cannot be read.
    """
    for size in submission.sizes:
        write_script(size, texts[size.shape.nodes])


_Job = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
_Nodes = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,\[\]-]*$", max_length=1 << 16)]
"""Slurm's list of nodes, such as n[1-4],m7."""
_Count = Annotated[int, Field(ge=0)]


class _StoredJob(BaseModel, strict=True):
    job_id: _Job
    launches: _Count = 0
    sessions: _Count = 0
    nodes: _Nodes = ""
    fetched: bool = False


class _StoredSize(BaseModel, strict=True):
    nodes: Annotated[int, limits.NODES]
    ranks_per_node: Annotated[int, limits.RANKS_PER_NODE]
    run: str
    estimated_s: Annotated[float, Field(ge=0)]
    jobs: list[_StoredJob] = []


class _StoredSlurm(BaseModel, strict=True):
    time_s: float | None
    options: list[Annotated[list[str | None], Field(min_length=2, max_length=2)]]
    setup: list[str]
    port: int | None
    local: str = ""
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None


class _StoredAsked(BaseModel, strict=True):
    experiment: str = ""
    experiment_digest: str = ""
    overrides: list[str] = []
    sizes: list[int] = []
    ranks_per_node: int = 1


class _Stored(BaseModel, strict=True):
    asked: _StoredAsked
    slurm: _StoredSlurm
    sizes: Annotated[list[_StoredSize], Field(min_length=1)]


def open_submission(path: Path) -> Submission:
    """Read and check the submission in a directory, from which no path or link may lead out.

    Raises:
        RequestError: the directory holds no submission.
        IdentityError: its file is damaged, or something in the directory leads out of it.
    """
    directory = SubmissionDir(path)
    stored = check(_Stored, directory.file, directory.read())
    sizes = []
    for size in stored.sizes:
        run = directory.run(size.nodes)
        if size.run != run.path.name:
            raise damaged(
                directory.file,
                f"the run on {size.nodes} nodes is named {shortened(size.run)}; must be {run.path.name!r}",
            )
        jobs = [SubmittedJob(**job.model_dump()) for job in size.jobs]
        shape = JobShape(size.nodes, size.ranks_per_node)
        sizes.append(SubmittedSize(shape=shape, run=run, estimated_s=size.estimated_s, jobs=jobs))
    numbers = [size.shape.nodes for size in sizes]
    if numbers != sorted(set(numbers)):
        raise damaged(directory.file, "its numbers of nodes are not ascending")
    slurm = stored.slurm
    try:
        request = Request(
            sizes=tuple(numbers),
            ranks_per_node=max(size.shape.ranks_per_node for size in sizes),
            time_s=slurm.time_s,
            options=tuple(Option(name=name or "", value=value) for name, value in slurm.options),
            setup=tuple(slurm.setup),
            port=slurm.port,
            local=slurm.local,
        )
    except RequestError as error:
        raise damaged(directory.file, str(error)) from None
    return Submission(
        path=path,
        sizes=sizes,
        asked=stored.asked.model_dump(),
        request=request,
        key=slurm.key or new_key(),  # an older version stored none
    )
