"""A sweep whose ranks torchrun, mp.spawn or mpiexec start: the same steps, and nothing left when it goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import ddpbench
from ddpbench.errors import MachineError
from ddpbench.runtime import launched
from tests.failures.conftest import ROOT, command, run_cli, worker_processes, workload
from tests.processes import started

pytestmark = pytest.mark.multiprocess
WriteExperiment = Callable[..., Path]


def with_launchers(experiment: Path, launchers: list[str]) -> Path:
    text = experiment.read_text(encoding="utf-8")
    experiment.write_text(text.replace("[axes]", f"[axes]\nlauncher = {launchers}"), encoding="utf-8")
    return experiment


@pytest.mark.usefixtures("no_base_case")
@pytest.mark.parametrize(
    "launchers",
    [
        ["local", "spawn", "mpiexec"],
        pytest.param(["local", "torchrun"], marks=pytest.mark.thorough),
    ],
    ids=" ".join,
)
def test_every_launcher_carries_a_sweep(
    write_experiment: WriteExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launchers: list[str]
) -> None:
    experiment = with_launchers(write_experiment([workload("Sound")], rounds=1), launchers)
    run, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    result = run_cli("sweep", experiment, "--out", run)
    assert result.returncode == 0, result
    assert list(temporary.iterdir()) == []
    frame = ddpbench.load(run)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    assert sorted(frame["launcher"]) == sorted(launchers)
    parts = [name for name in frame if str(name).startswith("startup_") and "ci" not in str(name)]
    sums = frame[[name for name in parts if name != "startup_s"]].sum(axis=1)
    assert sums.to_list() == pytest.approx(frame["startup_s"].to_list())
    imports = dict(zip(frame["launcher"], frame["startup_imports_s"], strict=True))
    others = [seconds for launcher, seconds in imports.items() if launcher != "local"]
    assert (
        imports["local"] < 0.1 < min(others)
    )  # a fork has imported everything: no other launcher's rank has
    page = (run / "report.html").read_text(encoding="utf-8")
    assert 'id="start-up"' in page


@pytest.mark.thorough
@pytest.mark.usefixtures("no_base_case")
@pytest.mark.parametrize("launcher", ["torchrun", "spawn", "mpiexec"])
def test_a_rank_that_fails_is_named_with_its_cause(
    write_experiment: WriteExperiment, tmp_path: Path, launcher: str
) -> None:
    experiment = with_launchers(write_experiment([workload("RaisesOnRank1")], rounds=1), [launcher])
    result = run_cli("sweep", experiment, "--out", tmp_path / "run")
    assert result.returncode == 1, result
    frame = ddpbench.load(tmp_path / "run")
    (error,) = frame[frame["strategy"] == "ddp"]["error"]
    assert "rank 1" in error, error
    assert "the forward pass is broken" in error, error


@pytest.mark.thorough
@pytest.mark.usefixtures("no_base_case")
@pytest.mark.parametrize("launcher", ["torchrun", "mpiexec"])
def test_a_rank_that_is_killed_is_named_with_its_signal(
    write_experiment: WriteExperiment, tmp_path: Path, launcher: str
) -> None:
    experiment = with_launchers(write_experiment([workload("KilledOnRank1")], rounds=1), [launcher])
    result = run_cli("sweep", experiment, "--out", tmp_path / "run")
    assert result.returncode == 1, result
    frame = ddpbench.load(tmp_path / "run")
    (error,) = frame[frame["strategy"] == "ddp"]["error"]
    assert re.search(r"rank 1 was killed by SIGKILL in (timed|instrumented) steps after 40 steps", error), (
        error
    )


def test_an_mpiexec_that_speaks_no_pmi_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mpiexec"
    program.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    program.chmod(0o755)
    monkeypatch.setattr(launched, "_program", lambda _: str(program))
    with pytest.raises(
        MachineError, match=r"is not part of MPICH or a related MPI \(mpiexec \(OpenRTE\) 4\.1\.4\)"
    ):
        launched.check_launcher("mpiexec")


@pytest.mark.thorough
@pytest.mark.usefixtures("no_base_case")
@pytest.mark.parametrize("launcher", ["torchrun"])
def test_a_rank_that_hangs_is_ended(write_experiment: WriteExperiment, tmp_path: Path, launcher: str) -> None:
    # It applies to starting, too, which takes seconds during other tests.
    experiment = write_experiment([workload("HangsInDataOnRank1")], rounds=1, hang_timeout="20 s")
    result = run_cli("sweep", with_launchers(experiment, [launcher]), "--out", tmp_path / "run")
    assert result.returncode == 1, result
    frame = ddpbench.load(tmp_path / "run")
    (row,) = frame[frame["strategy"] == "ddp"].itertuples()
    assert row.status == "hung", row
    assert "rank 1" in row.error, row.error
    assert "faulty.py" in row.error, row.error  # its stack shows where


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("torchrun", signal.SIGKILL),
        pytest.param("spawn", signal.SIGKILL, marks=pytest.mark.thorough),
        pytest.param("mpiexec", signal.SIGKILL, marks=pytest.mark.thorough),
        pytest.param("torchrun", signal.SIGINT, marks=pytest.mark.thorough),
    ],
)
def test_nothing_is_left_of_an_ended_sweep(
    write_experiment: WriteExperiment, tmp_path: Path, launcher: str, number: signal.Signals
) -> None:
    experiment = with_launchers(write_experiment([workload("Sound")], rounds=50), [launcher])
    temporary = tmp_path / "t"
    temporary.mkdir()
    sweep = subprocess.Popen(
        command("sweep", experiment, "--out", tmp_path / "run"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ
        | {"TMPDIR": str(temporary)},  # the folder of a killed sweep goes with a launch after an hour
    )
    deadline = time.monotonic() + 200
    while not any(
        "launch-00" in str(path) for path in (tmp_path / "run").glob("cases/*/launch-00/rank-*.jsonl")
    ):
        assert time.monotonic() < deadline
        assert sweep.poll() is None, "it ended by itself"
        time.sleep(0.05)
    assert worker_processes()
    sweep.send_signal(number)
    sweep.wait(60)
    deadline = time.monotonic() + 20
    while left := [one for one in started() if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert number == signal.SIGKILL or not list(temporary.glob("ddpbench-page-*"))


def test_srun_outside_of_a_job_is_refused(
    write_experiment: WriteExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text("#!/bin/sh\n")
    (folder / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    experiment = with_launchers(write_experiment([workload("Sound")], rounds=1), ["srun"])
    result = run_cli("sweep", experiment, "--out", tmp_path / "run")
    assert result.returncode == 2
    assert "run the sweep in a job there" in result.stderr
    assert not (tmp_path / "run").exists()
