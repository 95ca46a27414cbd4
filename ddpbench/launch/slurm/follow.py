"""Follow a submission: submit missing jobs, wait, resubmit jobs that ended too early, and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ddpbench.errors import DdpbenchError, LaunchError, RequestError
from ddpbench.launch.slurm import control, disks
from ddpbench.launch.slurm.control import GONE, JobState, UnreachableError
from ddpbench.launch.slurm.submission import (
    Submission,
    SubmittedJob,
    SubmittedSize,
    local_place,
    write_script,
    write_scripts,
)
from ddpbench.records.files import read_text
from ddpbench.records.sessions import read_sessions
from ddpbench.text_safety import command

POLL_S = 5.0
"""The first wait after a job's state has changed, seconds. Shorter waits could burden the cluster's controller."""
RUNNING_POLL_S = 15.0
WAITING_POLL_S = 60.0
"""The longest wait between checks, seconds: the first while a job runs, the second while none runs."""
_SLOWER = 1.25
"""The factor by which the wait grows each time."""
SETTLE_S = 15.0
"""Seconds that the records of an ended job may take to appear here on a shared file system."""
FETCH_EVERY_S = 60.0
"""Seconds between fetches from nodes' own disks during a job. If a node fails, records since the last one are lost."""
AGAIN_S = 10.0
FETCH_TRIES = 5
"""Seconds between attempts to fetch records after the job has ended, and the number of attempts."""
_LAST_LINES = 5
_MOST_OUTPUT = 1 << 26
_BUDGET = "budget"
_CARRIED_OUT = frozenset({"rounds_max", _BUDGET, "no case can be measured"})
"""Stop reasons of sessions after which nothing is left to measure within the budget."""
_GO_ON = frozenset({"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED", GONE})
"""States of jobs that Slurm ended through no fault of the jobs."""

FollowStep = Literal["wait", "submit", "done", "give up"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgress:
    """The progress of a run: its `finished` launches and proofs, and its `sessions`.

    `carried_out` is True if a session of the last job ended because nothing was left to measure within the budget, and
    `left_out` if it left out launches of the fewest rounds.
    """

    finished: int
    sessions: int
    carried_out: bool
    left_out: bool = False


def progress_of(size: SubmittedSize) -> RunProgress:
    """Return the progress of a run, from its files."""
    since = size.jobs[-1].sessions if size.jobs else 0
    with suppress(OSError):  # NFS may report a file as missing for a minute, unless its folder is opened
        any(size.run.path.iterdir())
    try:
        sessions = read_sessions(size.run)
    except DdpbenchError:  # the report says what is wrong with them
        sessions = []
    reasons = [session.get("stop_reason") for session in sessions[since:]]
    carried_out = any(reason in _CARRIED_OUT for reason in reasons)
    left_out = carried_out and reasons[-1] == _BUDGET and size.launches() < size.promised()
    return RunProgress(
        finished=size.finished(), sessions=len(sessions), carried_out=carried_out, left_out=left_out
    )


def next_step(
    last: SubmittedJob | None, state: JobState | None, progress: RunProgress, *, first: bool, again: bool
) -> FollowStep:
    """Return the next step for the jobs on one number of nodes (a size of the submission).

    `last` is the last submitted job, and `state` its state in Slurm. `first` says that this command has not decided
    about this size before, and `again` that a job is to rerun failed launches.
    """
    if last is None:
        return "submit"
    if state is not None and state.active:
        return "wait"
    if not again and progress.carried_out and not (first and progress.left_out):
        return "done"
    went_on = state is not None and state.state in _GO_ON and progress.finished > last.launches
    # A user who repeats the command wants the job to continue.
    return "submit" if again or first or went_on else "give up"


class SubmissionListener(Protocol):
    """Receives the progress of a submission."""

    def state(self, size: SubmittedSize, words: str, launches: int) -> None:
        """Handle a check of the job on one number of nodes: its state in words, and how many launches are measured."""

    def event(self, sentence: str) -> None:
        """Handle a sentence about an event. Each event is reported once."""


@dataclass
class Follower:
    """Submits the jobs of a submission and follows them. `given_up` maps numbers of nodes to reasons for giving up."""

    submission: Submission
    scripts: Mapping[int, str]
    listener: SubmissionListener
    retrying: Mapping[int, str] = field(default_factory=dict)
    """Scripts of jobs that rerun failed launches, by number of nodes. Each is submitted once if launches failed."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    given_up: dict[int, str] = field(default_factory=dict)
    _again: set[int] = field(default_factory=set)
    _looked: set[int] = field(default_factory=set)
    _inactive: dict[int, float] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)
    _fetched: dict[tuple[int, bool], float] = field(default_factory=dict)
    """Clock times of the last fetches, by number of nodes and whether the job was running."""
    _tried: dict[int, int] = field(default_factory=dict)
    _away: bool = False
    """True if Slurm did not answer the last request, which has then been reported."""

    def __post_init__(self) -> None:
        if self.retrying:
            self._again = {size.shape.nodes for size in self.submission.sizes if size.has_failed()}

    def check(self) -> dict[int, str]:
        """Write the scripts and have Slurm check each new one, before any job is submitted.

        Return each new job's partition by number of nodes; empty if unknown.

        Raises:
            RequestError: sbatch refuses a script.
            UnreachableError: Slurm does not answer.
        """
        write_scripts(self.submission, self.scripts)
        return {
            size.shape.nodes: control.would_run(size.script)
            for size in self.submission.sizes
            if not size.jobs
        }

    def submit_missing(self) -> None:
        """Submit a job for each size that has no current job, and return at once.

        Raises:
            RequestError: sbatch refuses a script.
            UnreachableError: Slurm does not answer.
        """
        self._adopt()
        states = self._states()
        for size in self.submission.sizes:
            self._look(size, states)

    def follow(self) -> None:
        """Submit jobs, and wait until the launches of every size are measured or the size is given up.

        Raises:
            RequestError: sbatch refuses a script.
        """
        self._adopt()
        before: Mapping[str, JobState] = {}
        pause = POLL_S
        while len(self._done) < len(self.submission.sizes):
            try:
                states = self._states()
                runs = any(state.state == "RUNNING" for state in states.values())
                slowest = RUNNING_POLL_S if runs else WAITING_POLL_S
                pause = min(slowest, pause * _SLOWER) if states == before else POLL_S
                before = states
                for size in self.submission.sizes:
                    if size.shape.nodes not in self._done:
                        self._look(size, states)
                self._away = False
            except UnreachableError as error:
                if not self._away:
                    self.listener.event(f"{error}; the jobs continue, and Slurm will be asked again")
                self._away = True
            if len(self._done) < len(self.submission.sizes):
                self.sleep(pause)

    def _adopt(self, *only: SubmittedSize) -> None:
        sizes = {size.script: size for size in only or self.submission.sizes}
        known = {job.job_id for size in self.submission.sizes for job in size.jobs}
        for script, job_id in control.strays(list(sizes), known).items():
            progress = progress_of(sizes[script])
            self._note(sizes[script], job_id, progress)
            self.listener.event(f"{sizes[script].name}: found job {job_id}, submitted before")

    def _note(self, size: SubmittedSize, job_id: str, progress: RunProgress) -> None:
        size.jobs.append(SubmittedJob(job_id=job_id, launches=progress.finished, sessions=progress.sessions))
        self.submission.save()

    def _states(self) -> dict[str, JobState]:
        left = [size for size in self.submission.sizes if size.shape.nodes not in self._done]
        jobs = {size.jobs[-1].job_id: size.script for size in left if size.jobs}
        return control.states(jobs)

    def _fetch(self, size: SubmittedSize, state: JobState | None) -> bool:
        """Fetch the last job's records if due; return whether this size's next step can be decided.

        Due about every minute while the job runs, and once more after its end.
        """
        nodes, last, runs = size.shape.nodes, size.jobs[-1], state is not None and state.active
        if state is not None and state.nodes and state.nodes != last.nodes:
            last = size.jobs[-1] = replace(last, nodes=state.nodes)
            self.submission.save()
        never_ran = not last.nodes
        if last.fetched or never_ran or (state is not None and runs and state.state != "RUNNING"):
            return True
        if self.clock() - self._fetched.get((nodes, runs), -FETCH_EVERY_S) < (
            FETCH_EVERY_S if runs else AGAIN_S
        ):
            return runs
        try:
            where, request = local_place(self.submission, size), self.submission.request
            job_id = last.job_id if runs else None
            disks.fetch(size.run.path, where, last.nodes, nodes, request, job_id=job_id)
        except UnreachableError as error:
            return self._unfetched(size, state, error) if not runs else True  # may have only just started
        except disks.RefusedFolderError as error:
            if runs:
                return True
            self._lost(size, str(error))
            return True
        finally:
            self._fetched[nodes, runs] = self.clock()
        if not runs:
            self._settle(size)
        return True

    def _unfetched(self, size: SubmittedSize, state: JobState | None, error: UnreachableError) -> bool:
        nodes, last = size.shape.nodes, size.jobs[-1]
        self._tried[nodes] = self._tried.get(nodes, 0) + 1
        kept = f"{size.name}: records of job {last.job_id} are still on {last.nodes}: {error}"
        if self._tried[nodes] < FETCH_TRIES:
            self.listener.event(kept)
        elif state is not None and state.state == "NODE_FAIL":
            self._lost(size, f"{last.nodes} is lost")
            return True
        else:
            self._done.add(nodes)
            self.given_up[nodes] = f"{kept}; run the command again once the nodes are free"
            self.listener.state(size, "given up", size.launches())
        return False

    def _lost(self, size: SubmittedSize, why: str) -> None:
        job = size.jobs[-1].job_id
        self.listener.event(
            f"{size.name}: the records that job {job} made since the last fetch are lost: {why}"
        )
        self._settle(size)

    def _settle(self, size: SubmittedSize) -> None:
        size.jobs[-1] = replace(size.jobs[-1], fetched=True)
        self.submission.save()

    def _check_there(self) -> None:
        """Check that the directories of the submission and its runs still exist.

        Raises:
            LaunchError: a directory was deleted or moved.
        """
        for path in (self.submission.path, *(size.run.path for size in self.submission.sizes)):
            try:
                path.stat()
            except (FileNotFoundError, NotADirectoryError):
                jobs = [size.jobs[-1].job_id for size in self.submission.sizes if size.jobs]
                end = f", or end the jobs with: {command('scancel', *jobs)}" if jobs else ""
                raise LaunchError(
                    f"{path} was deleted or moved, but its jobs write there: put it back and run the "
                    f"command again{end}"
                ) from None
            except OSError:  # the file system may be away for a while
                return

    def _look(self, size: SubmittedSize, states: Mapping[str, JobState]) -> None:
        self._check_there()
        nodes = size.shape.nodes
        last = size.jobs[-1] if size.jobs else None
        state = states.get(last.job_id) if last is not None else None
        if last is not None and self.submission.request.local:
            if not self._fetch(size, state):
                return
            last = size.jobs[-1]
        progress = progress_of(size)
        first = nodes not in self._looked
        step = next_step(last, state, progress, first=first, again=nodes in self._again)
        if step == "give up":
            since = self._inactive.setdefault(nodes, self.clock())
            if self.clock() - since < SETTLE_S:
                step = "wait"
        if step == "submit":
            if last is not None and state is not None:
                ended = "left the queue" if state.state == GONE else f"ended as {state.state}"
                self.listener.event(f"{size.name}: job {last.job_id} {ended}; it will be submitted again")
            self._submit(size, progress)
        self._looked.add(nodes)  # not reached if Slurm does not answer: then it does not count as looked at
        if step == "submit":
            return
        if step == "done":
            self._done.add(nodes)
            words = "measured; budget.total left launches out" if progress.left_out else "measured"
            self.listener.state(size, words, size.launches())
        elif step == "give up":
            assert last is not None
            self._done.add(nodes)
            self.given_up[nodes] = _why(size, last, state, progress)
            self.listener.state(size, "given up", size.launches())
        elif last is not None and state is not None:
            self.listener.state(size, _words(last, state), size.launches())

    def _submit(self, size: SubmittedSize, progress: RunProgress) -> None:
        nodes, before = size.shape.nodes, len(size.jobs)
        self._adopt(size)  # sbatch may have submitted a job without receiving the answer
        if len(size.jobs) > before:
            return
        write_script(size, (self.retrying if nodes in self._again else self.scripts)[nodes])
        try:
            job_id = control.submit(size.script)
        except RequestError as error:
            if not any(other.jobs for other in self.submission.sizes):
                raise
            self._done.add(nodes)  # the other jobs continue, and are still followed
            self.given_up[nodes] = f"{size.name}: {error}"
            self.listener.state(size, "given up", size.launches())
            return
        self._note(size, job_id, progress)
        self._again.discard(nodes)
        self._inactive.pop(nodes, None)
        self.listener.event(f"{size.name}: submitted as job {job_id}")


def _words(last: SubmittedJob, state: JobState) -> str:
    if state.state == "RUNNING":
        return f"job {last.job_id} runs on {state.nodes}"
    if state.state == "PENDING":
        why = f" ({state.reason})" if state.reason else ""
        return f"job {last.job_id} waits{why}"
    return f"job {last.job_id} is {state.state.lower()}"


def _why(size: SubmittedSize, last: SubmittedJob, state: JobState | None, progress: RunProgress) -> str:
    ended = state.state if state is not None else GONE
    output = size.output(last.job_id)
    if ended.startswith("CANCELLED"):
        return f"{size.name}: job {last.job_id} was cancelled"
    if ended in _GO_ON and progress.finished <= last.launches:
        longer = "; give a longer --time" if ended == "TIMEOUT" else ""
        return f"{size.name}: job {last.job_id} ended as {ended} before it finished a single launch or proof{longer}"
    lines: list[str] = []
    try:
        lines = [line.strip() for line in read_text(output, _MOST_OUTPUT).splitlines() if line.strip()]
    except (OSError, DdpbenchError):
        return f"{size.name}: job {last.job_id} ended as {ended}, and {output} cannot be read"
    log = "\n".join(f"    {line}" for line in lines[-_LAST_LINES:])
    return f"{size.name}: job {last.job_id} ended as {ended}; {output} ends with\n{log}"
