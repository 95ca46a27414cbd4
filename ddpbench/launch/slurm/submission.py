"""A submission: a directory with a run directory and a script for each number of nodes, and what was submitted.

submission.json  nodes-1/  nodes-2/ ...  merged/
    each a run directory, with job.sbatch and what its jobs printed, slurm-<job id>.out
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ddpbench.errors import IdentityError, OutputError, RequestError
from ddpbench.launch.elsewhere import PlannedFor, Shape, planned_for, write_run
from ddpbench.launch.plan import Plan, make_plan
from ddpbench.launch.slurm import disks
from ddpbench.launch.slurm.request import Request, option
from ddpbench.launch.slurm.script import job_script
from ddpbench.machine.identity import submitted_record
from ddpbench.records import SCHEMA_VERSION, LaunchDir, RunDir, write_atomically
from ddpbench.records.files import damaged, read_text
from ddpbench.records.machine import first_problem
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.records.rundir import checked_name, explain_os_error
from ddpbench.spec import Case, PlannedCase
from ddpbench.texts import command, unprintable

FILE = "submission.json"
SCRIPT = "job.sbatch"
_START_S = 300.0
"""Of a job's time limit: until its slots have imported torch, perhaps from a slow file system, and met."""
_MOST_FILE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job that was submitted, and how far its run was by then: launches and proofs finished, sessions noted.

    Where no directory is shared, `nodes` are those that it was last seen on, and it is `fetched` once its records are
    here that it had when it ended.
    """

    job_id: str
    launches: int = 0
    sessions: int = 0
    nodes: str = ""
    fetched: bool = False


@dataclass(kw_only=True, slots=True)
class Size:
    """One number of nodes: its run, and the jobs that were submitted for it, in order."""

    shape: Shape
    run: RunDir
    estimated_s: float
    """What all its launches are estimated to take, seconds."""
    jobs: list[Job] = field(default_factory=list)

    @property
    def script(self) -> Path:
        """The job's script."""
        return self.run.path / SCRIPT

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return "1 node" if self.shape.nodes == 1 else f"{self.shape.nodes} nodes"

    def launches(self) -> int:
        """Return how many measuring launches have an outcome."""
        return sum(1 for path in self._outcomes() if not path.parent.name.startswith("proof"))

    def finished(self) -> int:
        """Return how many launches and proofs have an outcome; those that were set aside are none."""
        return len(self._outcomes())

    def _outcomes(self) -> list[Path]:
        found = self.run.path.glob("cases/*/*/outcome.json")
        return [
            path for path in found if path.parent.name == "proof" or LaunchDir(path.parent).number is not None
        ]

    def promised(self) -> int:
        """Return how many measuring launches the plan promises."""
        plan = read_plan(self.run)
        return plan.budget.rounds_min * sum(entry.skip_reason is None for entry in plan.cases)

    def has_failed(self) -> bool:
        """Return whether a launch or a proof is not ok."""
        return any(b'"status": "ok"' not in path.read_bytes() for path in self._outcomes())

    def output(self, job_id: str) -> Path:
        """Return where a job prints to."""
        return self.run.path / f"slurm-{job_id}.out"


@dataclass(kw_only=True, slots=True)
class Submission:
    """A directory of jobs, as it is or as it is to be made. `asked` is what it was planned from."""

    path: Path
    sizes: list[Size]
    asked: Mapping[str, Any]
    request: Request
    plans: Mapping[int, Plan] = field(default_factory=dict)
    """What is to be written, by number of nodes; nothing where it stands already."""
    notes: tuple[str, ...] = ()

    @property
    def again(self) -> str:
        """The command that goes on with it."""
        return command("ddpbench", "submit", self.path)

    def save(self) -> None:
        """Writes submission.json.

        Raises:
            OutputError: it cannot be written.
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
        }
        data = {"schema_version": SCHEMA_VERSION, "asked": self.asked, "slurm": slurm, "sizes": sizes}
        try:
            write_atomically(self.path / FILE, json.dumps(data, indent=1) + "\n")
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {explain_os_error(error)}") from None


def plan_submission(
    source: Path, request: Request, *, overrides: Sequence[str] = (), out: Path | None = None
) -> Submission:
    """Return the submission of an experiment; nothing is written.

    A case runs in the smallest allocation that holds it. The base case of a speed-up runs in each that has a case of
    its curve, so that both come from the same nodes and rounds.

    Raises:
        RequestError: the experiment is wrong, nothing of it fits, or the directory holds another submission.
    """
    largest = Shape(request.sizes[-1], request.ranks_per_node)
    planned = planned_for(source, largest, launcher="slurm", overrides=overrides)
    _check_device(request, planned, overrides)
    path = checked_name(out if out is not None else Path("reports") / f"{planned.experiment.name}-slurm")
    if unprintable(str(path.absolute())) or "\n" in str(path.absolute()) or "\\" in str(path.absolute()):
        raise OutputError(
            "a backslash or a control character in the directory's path means something else to Slurm"
        )
    asked = {
        "experiment": str(source.absolute()),
        "experiment_digest": hashlib.sha256(source.read_bytes()).hexdigest()[:16],
        "overrides": list(overrides),
        "sizes": list(request.sizes),
        "ranks_per_node": request.ranks_per_node,
    }
    notes = [*planned.notes]
    if (path / FILE).exists():
        found = open_submission(path)
        _check_same(found, asked)
        return replace(found, request=request, notes=tuple(notes))
    if path.exists() and any(one.name != ".lock" for one in path.iterdir()):
        raise OutputError(f"{path} is not empty, and no submission: choose another --out")
    sizes, plans = [], {}
    for nodes in request.sizes:
        cases = _cases_of(nodes, request.sizes, planned)
        if all(entry.skip_reason is not None for entry in cases):
            notes.append(
                f"no job on {nodes} node{'s' if nodes != 1 else ''}: no case needs as many, or just as many"
            )
            continue
        plan = plans[nodes] = make_plan(planned.experiment, cases)
        sizes.append(
            Size(
                shape=Shape(nodes, request.ranks_per_node),
                run=RunDir(path / f"nodes-{nodes}"),
                estimated_s=plan.estimate_s(plan.budget.rounds_max),
            )
        )
    return Submission(path=path, sizes=sizes, asked=asked, request=request, plans=plans, notes=tuple(notes))


def _check_device(request: Request, planned: PlannedFor, overrides: Sequence[str]) -> None:
    """Whether jobs that ask for GPUs would use them: a login node, which has none, makes CPUs of `auto`.

    Raises:
        RequestError: they would not, and nobody has said so.
    """
    asks = [one for one in request.options if one.name.startswith("gpu") or "gpu" in (one.value or "")]
    asks = [one for one in asks if one.name.startswith("gpu") or one.name in ("gres", "tres-per-task")]
    said = any(text.strip().startswith(("base.device", "axes.device")) for text in overrides)
    if asks and not said and all(entry.case.device == "cpu" for entry in planned.cases):
        raise RequestError(
            f"--{asks[0].name} asks for GPUs, and the cases are planned for CPUs, as this machine has no GPU: add "
            "--set base.device=cuda (or base.device=cpu, if that is meant)"
        )


def _check_same(found: Submission, asked: Mapping[str, Any]) -> None:
    """Whether a directory's submission is of the same experiment on the same nodes.

    Raises:
        RequestError: it is not; what differs is named.
    """
    words = {
        "experiment": "the experiment",
        "experiment_digest": "the experiment's text",
        "overrides": "--set",
        "sizes": "--nodes",
        "ranks_per_node": "--ranks-per-node",
    }
    differing = [name for key, name in words.items() if found.asked.get(key) != asked[key]]
    if differing:
        raise RequestError(
            f"{found.path} holds a submission with another {', '.join(differing).removeprefix('the ')}: choose another "
            f"--out, or go on with that one: {found.again}"
        )


def _cases_of(nodes: int, sizes: Sequence[int], planned: PlannedFor) -> list[PlannedCase]:
    """Return the cases of one allocation: whose smallest it is, and their base cases. The largest has the skipped."""

    def home(entry: PlannedCase) -> int:
        if entry.skip_reason is not None:
            return sizes[-1]
        return min(size for size in sizes if size >= entry.case.nodes)

    own = [entry for entry in planned.cases if home(entry) == nodes]
    wanted = {entry.case.baseline().case_id for entry in own if entry.skip_reason is None}
    there = {entry.case.case_id for entry in own}
    return own + [entry for entry in planned.cases if entry.case.case_id in wanted - there]


def time_limit_s(total_s: float, estimated_s: float) -> float:
    """Return the time limit of a job, seconds: what its launches are estimated to take, twice, and time to start.

    The job ends by itself when `budget.total`, seconds, is spent: it never needs more.
    """
    return _START_S + min(total_s, 2 * estimated_s)


def write_submission(submission: Submission) -> None:
    """Makes the directory with its runs, and their plans; nothing where it stands already.

    Raises:
        OutputError: it cannot be written.
    """
    for size in submission.sizes:
        plan = submission.plans.get(size.shape.nodes)
        if plan is not None:
            write_run(size.run, plan, submitted_record(size.shape.nodes, size.shape.ranks_per_node))
    submission.save()


def current(submission: Submission) -> Submission:
    """Return the submission as its directory, which is locked by now, has it; what is asked of Slurm is this one's.

    Raises:
        RequestError: the directory has become another submission's meanwhile.
        IdentityError: its file is damaged.
    """
    if not (submission.path / FILE).exists():
        return submission
    if submission.plans:
        raise RequestError(
            f"{submission.path} has just become a submission's: go on with that one: {submission.again}"
        )
    return replace(open_submission(submission.path), request=submission.request, notes=submission.notes)


def _time_s(submission: Submission, size: Size, plan: Plan | StoredPlan) -> float:
    given = submission.request.time_s
    return time_limit_s(plan.budget.total, size.estimated_s) if given is None else given


def needs(submission: Submission) -> dict[int, float]:
    """Return the time limit of each job that is still to be submitted, seconds, by its number of nodes.

    Raises:
        RequestError: a run that stands already cannot be read.
    """
    return {
        size.shape.nodes: _time_s(
            submission, size, submission.plans.get(size.shape.nodes) or read_plan(size.run)
        )
        for size in submission.sizes
        if not size.jobs
    }


def _cpus(cases: Sequence[Case]) -> int | None:
    """Return how many cores a rank is to have: its threads and loader workers; of a GPU's rank Slurm knows better."""
    if any(case.device == "cuda" for case in cases):
        return None
    return max((case.threads_per_rank + case.loader_workers for case in cases), default=None)


def scripts(submission: Submission, *, retry_failed: bool = False) -> dict[int, str]:
    """Return the script of each job, by its number of nodes.

    Raises:
        RequestError: a run that stands already cannot be read.
    """
    found, request = {}, submission.request
    name = Path(str(submission.asked["experiment"])).stem
    for size in submission.sizes:
        plan = submission.plans.get(size.shape.nodes) or read_plan(size.run)
        cases = [entry.case for entry in plan.cases if entry.skip_reason is None]
        found[size.shape.nodes] = job_script(
            size.run.path.absolute(),
            f"{name}-{size.shape.nodes}",
            size.shape,
            request,
            cpus=_cpus(cases),
            time_s=_time_s(submission, size, plan),
            python=sys.executable,
            again=command("ddpbench", "submit", submission.path.absolute()),
            retry_failed=retry_failed,
            local=local_place(submission, size) if request.local else "",
        )
    return found


def local_place(submission: Submission, size: Size) -> str:
    """Return where a size's run is on the nodes' own disks, as a word of their shells."""
    key = hashlib.sha256(str(submission.path.absolute()).encode()).hexdigest()[:8]
    return disks.place(submission.request, size.run.path.name, key)


def write_script(size: Size, text: str) -> None:
    """Writes a job's script into its run, and the run after it where the text asks for that.

    Raises:
        OutputError: it cannot be written.
        RequestError: the run is too large for a script.
    """
    packed = disks.archive(size.run.path) if text.endswith(f"\n{disks.MARK}\n") else ""
    try:
        write_atomically(size.script, text + packed, private=bool(packed))  # the job's key is in it
    except OSError as error:
        raise OutputError(f"{size.script} cannot be written: {explain_os_error(error)}") from None


def write_scripts(submission: Submission, texts: Mapping[int, str]) -> None:
    """Writes the scripts into the runs.

    Raises:
        OutputError: one cannot be written.
    """
    for size in submission.sizes:
        write_script(size, texts[size.shape.nodes])


class _StoredJob(BaseModel, strict=True):
    job_id: str
    launches: int = 0
    sessions: int = 0
    nodes: str = ""
    fetched: bool = False


class _StoredSize(BaseModel, strict=True):
    nodes: int
    ranks_per_node: int
    run: str
    estimated_s: float
    jobs: list[_StoredJob] = []


class _StoredSlurm(BaseModel, strict=True):
    time_s: float | None
    options: list[list[str | None]]
    setup: list[str]
    port: int | None
    local: str = ""


class _Stored(BaseModel, strict=True):
    asked: dict[str, Any]
    slurm: _StoredSlurm
    sizes: Annotated[list[_StoredSize], Field(min_length=1)]


def open_submission(path: Path) -> Submission:
    """Return the submission that a directory holds.

    Raises:
        RequestError: it holds none.
        IdentityError: its file is damaged.
    """
    if not (path / FILE).is_file():
        raise RequestError(f"{path} holds no submission: there is no {FILE}")
    try:
        stored = _Stored.model_validate(json.loads(read_text(path / FILE, _MOST_FILE)))
    except ValidationError as error:
        raise damaged(path / FILE, first_problem(error)) from None
    except ValueError as error:
        raise damaged(path / FILE, str(error)) from None
    sizes = []
    for size in stored.sizes:
        if (
            Path(size.run).name != size.run
            or not size.run
            or not all(job.job_id.isdecimal() for job in size.jobs)
        ):
            raise IdentityError(f"{path / FILE} is damaged: it leads out of its directory")
        jobs = [Job(**job.model_dump()) for job in size.jobs]
        shape = Shape(size.nodes, size.ranks_per_node)
        sizes.append(Size(shape=shape, run=RunDir(path / size.run), estimated_s=size.estimated_s, jobs=jobs))
    slurm = stored.slurm
    request = Request(
        sizes=tuple(size.shape.nodes for size in sizes),
        ranks_per_node=sizes[0].shape.ranks_per_node,
        time_s=slurm.time_s,
        options=tuple(option(name or "", value) for name, value in slurm.options),
        setup=tuple(slurm.setup),
        port=slurm.port,
        local=slurm.local,
    )
    return Submission(path=path, sizes=sizes, asked=stored.asked, request=request)
