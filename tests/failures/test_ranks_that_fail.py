"""Ranks that fail in every way at once in one sweep: each case gets its own verdict, and none stops another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import LaunchOutcome
from ddpbench.spec import PlannedCase
from tests.failures.conftest import experiment_text, workload
from tests.processes import TAG

pytestmark = pytest.mark.multiprocess

NAMES = [
    "RaisesInForward",
    "RaisesOnRank1",
    "GivesNan",
    "KilledOnRank1",
    "StopsOnRank1",
    "OutOfMemory",
    "DropsGradients",
    "Exits",
    "ExitsOnRank1",
    "HangsInDataOnRank1",
    "Sound",
]


class Outcomes(Listener):
    def __init__(self) -> None:
        self.seen: dict[str, list[LaunchOutcome]] = {}

    def launch_ended(self, entry: PlannedCase, outcome: LaunchOutcome, samples_per_s: float | None) -> None:
        if not entry.added_as_baseline:
            self.seen.setdefault(entry.case.workload.rpartition(":")[2], []).append(outcome)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[LaunchOutcome]]]:
    folder: Path = tmp_path_factory.mktemp("faults")
    path = folder / "faults.toml"
    text = experiment_text([workload(name) for name in NAMES], hang_timeout="3 s", total="5 min")
    path.write_text(text, encoding="utf-8")
    listener = Outcomes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDPBENCH_TEST_TAG", TAG)
        Sweep(prepare(SweepRequest(experiment=path, out=folder / "run")), listener).run()
    return listener.seen


@pytest.mark.parametrize(
    ("name", "status", "rank", "words"),
    [
        ("RaisesInForward", "failed", None, ["ValueError: the forward pass is broken"]),
        ("RaisesOnRank1", "failed", 1, ["rank 1", "the forward pass is broken"]),
        ("GivesNan", "diverged", None, ["loss is nan", "learning rate"]),
        ("KilledOnRank1", "failed", 1, ["rank 1 was killed by SIGKILL", "steps"]),
        ("StopsOnRank1", "hung", 1, ["rank 1 is stopped", "--retry-failed"]),
        ("OutOfMemory", "oom", None, ["out of memory", "smaller batch"]),
        ("DropsGradients", "diverged", None, ["initial state"]),
        ("Exits", "failed", None, ["without saying how"]),
        ("ExitsOnRank1", "failed", 1, ["rank 1 ended without saying how in", "os._exit"]),
        (
            "HangsInDataOnRank1",
            "hung",
            1,
            ["rank 1 waits for its next batch in proof", "faulty.py:", "a batch"],
        ),
    ],
)
def test_each_failure_is_told_for_what_it_is(
    outcomes: dict[str, list[LaunchOutcome]], name: str, status: str, rank: int | None, words: list[str]
) -> None:
    bad = [outcome for outcome in outcomes[name] if outcome.status != "ok"]
    assert bad, outcomes[name]
    for outcome in bad:
        assert outcome.status == status, outcome
        for word in words:
            assert word in outcome.error, outcome.error
        if rank is not None:
            assert outcome.failed_rank == rank
        assert outcome.exit_codes.count(None) == 0  # every rank is accounted for


def test_a_sound_case_beside_them_is_measured(outcomes: dict[str, list[LaunchOutcome]]) -> None:
    assert [(outcome.purpose, outcome.status) for outcome in outcomes["Sound"]] == [
        ("proof", "ok"),
        ("measure", "ok"),
        ("measure", "ok"),
    ]
    assert all(outcome.measured_s > 0.05 for outcome in outcomes["Sound"] if outcome.purpose == "measure")


def test_a_rank_that_dies_in_a_collective_is_named_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ddpbench.runtime.watchdog.GRACE_S", 60.0
    )  # the other rank ends by itself, also on a slow day
    path = tmp_path / "faults.toml"
    # so long that its 40th step is one of the timed ones, in a collective, on a slow day too
    path.write_text(experiment_text([workload("KilledOnRank1")], rounds=1, measured="1 s"), encoding="utf-8")
    listener = Outcomes()
    overrides = ("base.algorithm=ring",)
    Sweep(prepare(SweepRequest(experiment=path, out=tmp_path / "run", overrides=overrides)), listener).run()
    (outcome,) = [one for one in listener.seen["KilledOnRank1"] if one.status != "ok"]
    assert outcome.failed_rank == 1
    assert "rank 1 was killed by SIGKILL in" in outcome.error
    assert "steps; rank 0: ring of 676 numbers: the message " in outcome.error  # 16 x 32 + 32 + 32 x 4 + 4
    assert "rank 1 was not transferred" in outcome.error


def test_a_worker_that_dies_does_not_leave_its_server_waiting(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(
        experiment_text([workload("KilledOnRank1")], rounds=1, measured="50 ms"), encoding="utf-8"
    )
    listener = Outcomes()
    overrides = ("base.strategy=async_server",)
    Sweep(prepare(SweepRequest(experiment=path, out=tmp_path / "run", overrides=overrides)), listener).run()
    (outcome,) = [one for one in listener.seen["KilledOnRank1"] if one.status != "ok"]
    assert outcome.status == "failed"
    assert outcome.failed_rank == 1
    assert re.search(r"rank 1 was killed by SIGKILL in [a-z -]+ after \d+ steps", outcome.error)


def test_the_death_of_the_fork_server_is_one_launchs_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "faults.toml"
    names = ["KillsTheServer", "StopsTheServer"]
    text = experiment_text(
        [workload(name) for name in names], rounds=2, measured="50 ms", hang_timeout="60 s"
    )
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("DDPBENCH_TEST_MARK", str(tmp_path / "killed"))
    monkeypatch.setattr("ddpbench.runtime.running_server.STOPPED_LOOKS", 2)
    listener = Outcomes()
    Sweep(prepare(SweepRequest(experiment=path, out=tmp_path / "run")), listener).run()
    for name, said in zip(
        names, ("fork server was killed by SIGKILL", "was stopped, by SIGSTOP"), strict=True
    ):
        seen = listener.seen[name]
        (failed,) = [outcome for outcome in seen if outcome.status == "failed"]
        assert said in failed.error
        assert "hang_timeout" not in failed.error
        assert [outcome.status for outcome in seen].count("ok") == 2, seen  # the proof, and the round after


def test_a_case_that_cannot_work_is_not_tried_for_ever(outcomes: dict[str, list[LaunchOutcome]]) -> None:
    assert len(outcomes["DropsGradients"]) == 1  # its proof failed
    assert len(outcomes["RaisesOnRank1"]) <= 3  # a proof and two launches
