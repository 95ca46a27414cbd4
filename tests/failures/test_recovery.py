"""Trainings that fail as planned, on real ranks under real agents of torchrun: they end as if nothing had failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ddpbench
from ddpbench.records import Failure, Gang, RunDir, read_launch
from ddpbench.records.rundir import LaunchDir
from tests.failures.conftest import run_cli, worker_processes, workload

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("no_base_case")]
WriteExperiment = Callable[..., Path]


def of_failures(experiment: Path, kinds: list[str], *, agents: int = 2, every: int = 15) -> Path:
    """Return the experiment with these failures; only DDP at two ranks."""
    text = experiment.read_text(encoding="utf-8")
    base = f'launcher = "torchrun"\nagents = {agents}\nsnapshot_every = {every}\ncollective_timeout = "8 s"\n'
    text = text.replace("[axes]\n", f"{base}[axes]\nrecovery = {kinds}\n")
    text = text.replace('strategy = ["single", "ddp"]', 'strategy = ["ddp"]')
    experiment.write_text(text, encoding="utf-8")
    return experiment


def launches(run: Path) -> dict[str, LaunchDir]:
    """Return the folders of the measuring launches, by what fails in them."""
    frame = ddpbench.load(run)
    return {
        row.recovery: RunDir(run).launch(row.case_id, "measure", 0)
        for row in frame.itertuples()
        if row.strategy == "ddp"
    }


@pytest.mark.parametrize(
    "kinds",
    [
        ["uninterrupted", "snapshot"],
        pytest.param(["uninterrupted", "SIGKILL", "agent"], marks=pytest.mark.thorough),
    ],
    ids=" ".join,
)
def test_training_goes_on_where_its_last_snapshot_is(
    write_experiment: WriteExperiment, tmp_path: Path, kinds: list[str]
) -> None:
    agents = 2 if "agent" in kinds else 1
    experiment = of_failures(write_experiment([workload("Dropping")], rounds=1), kinds, agents=agents)
    run = tmp_path / "run"
    result = run_cli("sweep", experiment, "--out", run)
    assert result.returncode == 0, result
    frame = ddpbench.load(run)
    frame = frame[frame["strategy"] == "ddp"].set_index("recovery")
    assert set(frame["status"]) == {"ok"}, frame[["status", "error"]].to_string()
    for kind in kinds[1:]:
        row = frame.loc[kind]
        assert (row["failures"], row["recoveries"]) == (1, 1), kind
        assert (row["samples_lost"], row["samples_repeated"]) == (0, 0), kind
        assert row["recovery_loss_difference"] == 0.0, kind  # every step's, in nine digits
        assert row["recovery_loss_steps"] > 90, kind
        assert bool(row["params_equal"]), kind
        assert row["recovery_starting_s"] > 0.1, kind  # torch is imported again
        assert row["recovery_snapshot_bytes"] > 0, kind
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "What does a failure cost, and how often is a snapshot worth while?" in page
    if "snapshot" in kinds:
        assert "was not finished" in frame.loc["snapshot", "snapshots_unreadable"]
        assert frame.loc["snapshot", "recomputed_steps"] == 15  # all of a period
        assert "was not finished; training went on from the snapshot before" in page
    if "agent" in kinds:
        assert frame.loc["agent", "recovery_rendezvous_s"] > frame.loc["SIGKILL", "recovery_rendezvous_s"]
    assert not worker_processes()
    assert not list(run.glob("cases/*/launch-*/snapshots"))


@pytest.mark.thorough
def test_a_node_leaves_and_comes_back(write_experiment: WriteExperiment, tmp_path: Path) -> None:
    experiment = of_failures(write_experiment([workload("Sound")], rounds=1), ["leave"])
    run = tmp_path / "run"
    result = run_cli("sweep", experiment, "--out", run)
    assert result.returncode == 0, result
    frame = ddpbench.load(run)
    (row,) = frame[frame["strategy"] == "ddp"].itertuples()
    assert row.status == "ok", row.error
    assert (row.recoveries, row.samples_lost, row.samples_repeated) == (1, 0, 0)
    assert row.joining_s > 0.1
    ranks = read_launch(launches(run)["leave"]).ranks
    assert [gang.world_size for gang in ranks[0].of(Gang)] == [2, 1, 2]
    assert row.before_samples_per_s > 0
    assert row.away_samples_per_s > 0
    assert row.after_samples_per_s > 0


@pytest.mark.thorough
def test_restarts_that_are_used_up_are_said(write_experiment: WriteExperiment, tmp_path: Path) -> None:
    """It fails at a step that every gang reaches."""
    experiment = of_failures(
        write_experiment([workload("RaisesAfterTheFailure")], rounds=1), ["SIGKILL"], agents=1
    )
    run = tmp_path / "run"
    result = run_cli("sweep", experiment, "--out", run)
    assert result.returncode == 1, result
    frame = ddpbench.load(run)
    (row,) = frame[frame["strategy"] == "ddp"].itertuples()
    assert row.status == "failed"
    assert "this model has had enough" in row.error, row.error
    assert "torchrun restarted its ranks 3 times, the most allowed" in row.error, row.error
    failures = [each for rank in read_launch(launches(run)["SIGKILL"]).ranks for each in rank.of(Failure)]
    assert len(failures) == 1
    assert not worker_processes()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("base.launcher=local", 'set launcher = "torchrun"'),
        ("base.agents=1", "needs an agent that stays: set agents = 2 or more"),
        ("base.agents=3", "2 ranks do not divide evenly over 3 agents"),
        ("base.backend=mpi", "use gloo or nccl"),
        ("options.ddp.compression=powersgd", "a snapshot does not hold what PowerSGD carries over"),
    ],
)
def test_what_cannot_be_recovered_from_is_skipped_with_the_way_out(
    write_experiment: WriteExperiment, tmp_path: Path, setting: str, words: str
) -> None:
    experiment = of_failures(write_experiment([workload("Sound")], rounds=1), ["agent"])
    result = run_cli("sweep", experiment, "--set", setting, "--dry-run")
    assert words in result.stdout + result.stderr, result
