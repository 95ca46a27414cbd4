"""The next step for one size, by the state of its last job; with a made-up clock and Slurm."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.errors import LaunchError, RequestError
from ddpbench.launch.external import JobShape
from ddpbench.launch.slurm import control, disks, follow
from ddpbench.launch.slurm.control import JobState, UnreachableError
from ddpbench.launch.slurm.follow import Follower, RunProgress, next_step
from ddpbench.launch.slurm.request import Request
from ddpbench.launch.slurm.submission import Submission, SubmittedJob, SubmittedSize
from ddpbench.records import RunDir

NOTHING = RunProgress(finished=0, sessions=0, carried_out=False)
SOME = RunProgress(finished=3, sessions=1, carried_out=False)
ALL = RunProgress(finished=9, sessions=1, carried_out=True)
PAID = RunProgress(finished=9, sessions=1, carried_out=True, left_out=True)


@pytest.mark.parametrize(
    ("last", "state", "progress", "first", "again", "step"),
    [
        (None, None, NOTHING, True, False, "submit"),
        (SubmittedJob(job_id="1"), "PENDING", NOTHING, True, False, "wait"),
        (SubmittedJob(job_id="1"), "COMPLETING", ALL, False, False, "wait"),
        (SubmittedJob(job_id="1"), "REQUEUED", SOME, False, False, "wait"),
        (SubmittedJob(job_id="1"), "COMPLETED", ALL, False, False, "done"),
        (
            SubmittedJob(job_id="1"),
            "FAILED",
            ALL,
            True,
            False,
            "done",
        ),  # all launches are made; some are not ok
        (SubmittedJob(job_id="1"), "COMPLETED", ALL, True, True, "submit"),  # --retry-failed
        (SubmittedJob(job_id="1"), "COMPLETED", PAID, False, False, "done"),  # the budget is spent
        (SubmittedJob(job_id="1"), "COMPLETED", PAID, True, False, "submit"),  # the user wants the rest
        (SubmittedJob(job_id="1"), "RUNNING", SOME, True, True, "wait"),
        (SubmittedJob(job_id="1"), "TIMEOUT", SOME, False, False, "submit"),
        (
            SubmittedJob(job_id="1", launches=3),
            "TIMEOUT",
            SOME,
            False,
            False,
            "give up",
        ),  # it would never end
        (
            SubmittedJob(job_id="1", launches=3),
            "TIMEOUT",
            SOME,
            True,
            False,
            "submit",
        ),  # the user wants it to
        (SubmittedJob(job_id="1"), "NODE_FAIL", SOME, False, False, "submit"),
        (SubmittedJob(job_id="1"), "PREEMPTED", SOME, False, False, "submit"),
        (SubmittedJob(job_id="1"), "GONE", SOME, False, False, "submit"),
        (SubmittedJob(job_id="1"), "CANCELLED", SOME, False, False, "give up"),
        (SubmittedJob(job_id="1"), "CANCELLED", SOME, True, False, "submit"),
        (SubmittedJob(job_id="1"), "FAILED", SOME, False, False, "give up"),
        (SubmittedJob(job_id="1"), "OUT_OF_MEMORY", SOME, False, False, "give up"),
    ],
)
def test_the_next_step(
    last: SubmittedJob | None, state: str | None, progress: RunProgress, first: bool, again: bool, step: str
) -> None:
    job = JobState(state=state) if state is not None else None
    assert next_step(last, job, progress, first=first, again=again) == step


class Scene:
    """A submission of one size, a Slurm with prepared answers, and a clock that sleep advances."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.answers, self.submitted = 0.0, list[str | Exception](), 0
        self.said: list[str] = []
        self.scripts: list[str] = []
        self.refused: dict[Path, RequestError] = {}
        self.unanswered = 0
        """The submission that Slurm receives but does not answer."""
        run = RunDir(folder / "nodes-1")
        run.path.mkdir(parents=True)
        self.size = SubmittedSize(shape=JobShape(1, 1), run=run, estimated_s=1.0)
        submission = Submission(
            path=folder, sizes=[self.size], asked={}, request=Request(sizes=(1,), ranks_per_node=1)
        )
        self.follower = Follower(submission, {1: ""}, self, sleep=self.sleep, clock=lambda: self.now)
        monkeypatch.setattr(control, "submit", self.submit)
        monkeypatch.setattr(control, "states", self.states)
        self.strays: dict[Path, str] = {}
        monkeypatch.setattr(control, "strays", self.find_strays)

    def find_strays(self, _scripts: list[Path], known: set[str]) -> dict[Path, str]:
        return {script: job_id for script, job_id in self.strays.items() if job_id not in known}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def submit(self, script: Path) -> str:
        if script in self.refused:
            raise self.refused[script]
        self.submitted += 1
        self.scripts.append(script.read_text())
        if self.unanswered == self.submitted:
            self.strays = {script: str(self.submitted)}
            raise UnreachableError("sbatch: away")
        return str(self.submitted)

    def states(self, jobs: dict[str, Path]) -> dict[str, JobState]:
        if not jobs:
            return {}
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer.startswith("+"):
            self.launch(int(answer[1]))
            answer = answer[2:]
        if answer == "ENDS":
            sessions = {"schema_version": 1, "sessions": [{"stop_reason": "rounds_max"}]}
            self.size.run.sessions.write_text(json.dumps(sessions))
            answer = "COMPLETED"
        return {job_id: JobState(state=answer) for job_id in jobs}

    def launch(self, count: int, status: str = "failed") -> None:
        for _ in range(count):
            folder = self.size.run.path / "cases" / "a" / f"launch-{self.size.launches():02}"
            folder.mkdir(parents=True)
            (folder / "outcome.json").write_text(json.dumps({"status": status}))

    def state(self, _size: SubmittedSize, words: str, launches: int) -> None:
        self.said.append(f"{words} {launches}")

    def event(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path / "submission", monkeypatch)


def test_what_a_time_limit_ended_goes_on_in_another_job(scene: Scene) -> None:
    scene.answers = ["PENDING", "+2TIMEOUT", "+1TIMEOUT", "ENDS"]
    scene.follower.follow()
    assert [(job.job_id, job.launches) for job in scene.size.jobs] == [("1", 0), ("2", 2), ("3", 3)]
    assert not scene.follower.given_up
    assert scene.said[-1] == "measured 3"


def test_a_job_that_gets_nothing_done_is_not_submitted_for_ever(scene: Scene) -> None:
    scene.answers = ["PENDING", "TIMEOUT"]
    scene.follower.follow()
    assert scene.submitted == 1
    assert "give a longer --time" in scene.follower.given_up[1]


def test_records_that_a_file_system_shows_late_are_waited_for(scene: Scene) -> None:
    scene.answers = ["RUNNING", "COMPLETED", "COMPLETED", "ENDS"]
    scene.follower.follow()
    assert scene.submitted == 1
    assert not scene.follower.given_up
    scene.now = 0.0


def test_a_failed_job_says_what_it_said_last(scene: Scene) -> None:
    scene.answers = ["RUNNING", "FAILED"]
    (scene.size.run.path / "slurm-1.out").write_text("first\n\nModuleNotFoundError: no torch\n")
    scene.follower.follow()
    assert "ModuleNotFoundError: no torch" in scene.follower.given_up[1]
    assert scene.now >= follow.SETTLE_S


def test_a_controller_that_is_away_ends_nothing(scene: Scene) -> None:
    scene.answers = ["RUNNING", UnreachableError("squeue: away"), UnreachableError("squeue: away"), "ENDS"]
    scene.follower.follow()
    assert sum("away" in one for one in scene.said) == 1  # not at each look
    assert scene.submitted == 1


def test_slurm_is_asked_ever_more_seldom_while_nothing_changes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, str]] = []
    states = scene.states

    def noted(jobs: dict[str, Path]) -> dict[str, JobState]:
        found = states(jobs)
        asked.extend((scene.now, one.state) for one in found.values())
        return found

    monkeypatch.setattr(control, "states", noted)
    scene.answers = [*["PENDING"] * 60, *["RUNNING"] * 40, "ENDS"]
    scene.follower.follow()
    pauses = [(later - now, state) for (now, state), (later, _) in itertools.pairwise(asked)]
    waiting = [pause for pause, state in pauses if state == "PENDING"]
    running = [pause for pause, state in pauses if state == "RUNNING"]
    assert waiting[0] == running[0] == follow.POLL_S
    assert waiting == sorted(waiting)
    assert waiting[-1] == follow.WAITING_POLL_S
    assert running[-1] == follow.RUNNING_POLL_S


def test_what_is_measured_needs_no_job(scene: Scene) -> None:
    scene.size.jobs.append(SubmittedJob(job_id="7"))
    scene.answers = ["ENDS"]
    scene.follower.follow()
    assert scene.submitted == 0


def test_failed_launches_are_done_again_once_by_a_script_that_says_so(scene: Scene) -> None:
    scene.launch(1)
    scene.size.jobs.append(SubmittedJob(job_id="7"))
    scene.follower = Follower(
        scene.follower.submission,
        {1: "as planned"},
        scene,
        {1: "--retry-failed"},
        sleep=scene.sleep,
        clock=lambda: scene.now,
    )
    scene.answers = ["COMPLETED", "+1TIMEOUT", "ENDS"]
    scene.follower.follow()
    assert scene.scripts == ["--retry-failed", "as planned"]


def test_a_retry_of_what_has_not_failed_wants_no_job(scene: Scene) -> None:
    scene.launch(1, "ok")
    scene.size.jobs.append(SubmittedJob(job_id="7"))
    scene.follower = Follower(
        scene.follower.submission,
        {1: "as planned"},
        scene,
        {1: "--retry-failed"},
        sleep=scene.sleep,
        clock=lambda: scene.now,
    )
    scene.answers = ["ENDS"]
    scene.follower.follow()
    assert scene.scripts == []


def test_a_size_that_is_refused_later_leaves_the_others_alone(scene: Scene) -> None:
    other = SubmittedSize(
        shape=JobShape(2, 1), run=RunDir(scene.size.run.path.parent / "nodes-2"), estimated_s=1.0
    )
    other.run.path.mkdir()
    scene.follower.submission.sizes.append(other)
    scene.follower.scripts = {1: "", 2: ""}
    scene.refused = {other.script: RequestError("sbatch refuses it: too many jobs")}
    scene.answers = ["RUNNING", "ENDS"]
    scene.follower.follow()
    assert "too many jobs" in scene.follower.given_up[2]
    assert scene.said[-1] == "measured 0"


def test_a_first_size_that_is_refused_ends_the_command(scene: Scene) -> None:
    scene.refused = {scene.size.script: RequestError("sbatch refuses it: no such account")}
    with pytest.raises(RequestError, match="no such account"):
        scene.follower.follow()


def test_a_submission_that_was_heard_but_not_answered_is_not_made_twice(scene: Scene) -> None:
    scene.answers = ["PENDING", "+2TIMEOUT", "ENDS"]
    scene.unanswered = 1
    scene.follower.follow()
    assert [job.job_id for job in scene.size.jobs] == ["1", "2"]
    assert scene.submitted == 2


def test_a_job_that_nobody_noted_is_found_and_not_submitted_again(scene: Scene) -> None:
    scene.strays = {scene.size.script: "9"}
    scene.answers = ["RUNNING", "ENDS"]
    scene.follower.follow()
    assert scene.submitted == 0
    assert [job.job_id for job in scene.size.jobs] == ["9"]


@pytest.mark.parametrize("gone", ["all of it", "one run", "moved"])
def test_a_directory_that_is_deleted_is_said_at_the_next_look(
    scene: Scene, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, states = scene.follower.submission.path, scene.states
    other = SubmittedSize(shape=JobShape(2, 1), run=RunDir(folder / "nodes-2"), estimated_s=1.0)
    other.run.path.mkdir()
    scene.follower.submission.sizes.append(other)
    scene.follower.scripts = {1: "", 2: ""}
    scene.answers = ["RUNNING"]
    looks = 0

    def deleted(jobs: dict[str, Path]) -> dict[str, JobState]:
        nonlocal looks
        looks += 1
        if looks == 3:
            if gone == "moved":
                folder.rename(folder.with_name("moved"))
            else:
                shutil.rmtree(folder if gone == "all of it" else other.run.path)
        assert looks < 6, "it is followed without an end"
        return states(jobs)

    monkeypatch.setattr(control, "states", deleted)
    path = other.run.path if gone == "one run" else folder
    with pytest.raises(LaunchError, match="was deleted or moved") as caught:
        scene.follower.follow()
    assert str(path) in str(caught.value)
    assert "scancel 1 2" in str(caught.value)
    assert looks == 3
    assert path.exists() is False, "nothing is written there again"


def test_records_that_cannot_be_trusted_on_a_node_are_given_up_and_the_reason_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise disks.RefusedFolderError("/tmp/x belongs to another user (on n1)")

    monkeypatch.setattr(disks, "fetch", refused)
    submission = scene.follower.submission
    submission.request = replace(submission.request, local="/tmp")
    scene.size.jobs.append(SubmittedJob(job_id="7", nodes="n1"))
    scene.follower._looked.add(1)
    scene.answers = ["FAILED"]
    scene.follower.follow()
    assert any(
        "the records that job 7 made since the last fetch are lost: /tmp/x belongs to another user (on n1)"
        in said
        for said in scene.said
    )
    assert scene.size.jobs[-1].fetched
    assert "ended as FAILED" in scene.follower.given_up[1]
