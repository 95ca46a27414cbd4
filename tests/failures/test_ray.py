"""Ranks that Ray Train starts, when something goes wrong: reported as with any launcher, and nothing is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import ddpbench
from ddpbench.runtime.launched import LaunchedRanks
from tests.failures.conftest import ROOT, command, run_cli, workload
from tests.failures.test_launchers import with_launchers
from tests.processes import alive
from tests.synthetic import case_of

pytestmark = [pytest.mark.multiprocess, pytest.mark.framework("ray_train")]
WriteExperiment = Callable[..., Path]


def under_ray(
    write_experiment: WriteExperiment, kind: str, *, strategy: str = "ddp", rounds: int = 1
) -> Path:
    experiment = with_launchers(
        write_experiment([workload(kind)], rounds=rounds, hang_timeout="300 s", total="60 min"), ["ray"]
    )
    text = experiment.read_text(encoding="utf-8").replace('strategy = "ddp"', f'strategy = "{strategy}"')
    experiment.write_text(text, encoding="utf-8")
    return experiment


def error_of(run: Path, strategy: str = "ddp") -> str:
    frame = ddpbench.load(run)
    (error,) = frame[frame["strategy"] == strategy]["error"]
    return str(error)


@pytest.mark.thorough
def test_a_rank_that_is_killed_is_named_with_its_signal(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    experiment = under_ray(write_experiment, "KilledOnRank1", strategy="ray_train")
    assert run_cli("sweep", experiment, "--out", tmp_path / "run").returncode == 1
    error = error_of(tmp_path / "run", "ray_train")
    assert re.search(r"rank 1 was killed by SIGKILL in (timed|instrumented) steps after 40 steps", error), (
        error
    )


@pytest.mark.thorough
def test_a_rank_that_fails_is_named_with_its_cause(write_experiment: WriteExperiment, tmp_path: Path) -> None:
    experiment = under_ray(write_experiment, "RaisesOnRank1")
    assert run_cli("sweep", experiment, "--out", tmp_path / "run").returncode == 1
    error = error_of(tmp_path / "run")
    assert "rank 1" in error, error
    assert "the forward pass is broken" in error, error


def test_a_ray_that_breaks_on_import_is_told_in_its_own_words(
    write_experiment: WriteExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken" / "ray"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('its own library is of another version')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent), prepend=os.pathsep)
    experiment = under_ray(write_experiment, "Sound")
    assert run_cli("sweep", experiment, "--out", tmp_path / "run").returncode == 1
    assert "rank-00000.attempt-0.log" in error_of(tmp_path / "run")
    (outcome,) = (tmp_path / "run").glob("cases/ddp-*/proof/outcome.json")
    assert "its own library is of another version" in outcome.read_text(encoding="utf-8")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("sweep", signal.SIGKILL),
        ("sweep", signal.SIGINT),
        ("driver", signal.SIGKILL),
        ("guard", signal.SIGKILL),
        ("raylet", signal.SIGKILL),
        ("rank", signal.SIGKILL),
    ],
)
def test_nothing_is_left_whoever_is_ended(
    write_experiment: WriteExperiment,
    tmp_path: Path,
    whom: str,
    number: signal.Signals,
    request: pytest.FixtureRequest,
) -> None:
    experiment = under_ray(write_experiment, "Sound", strategy="ray_train", rounds=50)
    sweep = subprocess.Popen(
        command("sweep", experiment, "--out", tmp_path / "run"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    deadline = time.monotonic() + 300
    try:
        _ended(tmp_path / "run", sweep, whom, number, deadline, request)
    finally:
        sweep.kill()
        sweep.wait()


def _ended(
    run: Path,
    sweep: subprocess.Popen[bytes],
    whom: str,
    number: signal.Signals,
    deadline: float,
    request: pytest.FixtureRequest,
) -> None:
    while not list(run.glob("cases/ray_train*/*/rank-00001*.jsonl")):
        assert time.monotonic() < deadline
        assert sweep.poll() is None
        time.sleep(0.05)
    # Ray renames its processes, over the environment by which tests find theirs: search beneath this process.
    below = psutil.Process(sweep.pid).children(recursive=True)
    lines = {one.pid: " ".join(one.cmdline()) for one in below}
    drivers = [pid for pid, line in lines.items() if "-m ddpbench.worker.ray " in line]
    raylets = [pid for pid, line in lines.items() if "/raylet/raylet" in line]
    ranks = [pid for pid, line in lines.items() if line.startswith("ray::RayTrainWorker")]
    assert (len(drivers), len(raylets), len(ranks)) == (2, 1, 2), lines
    (folder,) = {line.partition("--session-dir=")[2].partition("/r/session_")[0] for line in lines.values()
                 if "--session-dir=" in line}  # fmt: skip
    # The launch's folder is the parent. A launch an hour later removes that of a killed sweep.
    request.addfinalizer(lambda: shutil.rmtree(Path(folder).parent, ignore_errors=True))
    assert Path(folder).parent.name.startswith("ddpbench-page-")
    assert Path(folder).is_dir()
    assert Path(folder).stat().st_mode & 0o777 == 0o700  # Ray's own, beneath, is open to everybody
    pid = {
        "sweep": sweep.pid,
        "guard": drivers[0],
        "driver": drivers[1],
        "raylet": raylets[0],
        "rank": ranks[1],
    }[whom]
    os.kill(pid, number)
    try:
        if whom == "sweep":
            sweep.wait(60)
            assert alive(lines, within_s=60) == []
        else:  # the sweep continues: nothing of the launch is left
            assert alive((*drivers, *raylets, *ranks), within_s=60) == []
    finally:
        sweep.kill()
        sweep.wait()
    assert alive(lines, within_s=60) == []
    if whom == "sweep" and number == signal.SIGINT:
        assert not Path(folder).parent.exists()


@pytest.mark.thorough
def test_the_files_of_a_killed_sweeps_ray_go_with_the_next_launch() -> None:
    """A folder whose process is gone."""
    folder = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) <= 16 else "/tmp")
    page = folder / f"ddpbench-page-{os.getpid()}"
    (page / "d/session_x").mkdir(parents=True)
    (page / "d/session_x/log").write_text("of Ray")
    os.utime(page, (time.time() - 7200,) * 2)
    with LaunchedRanks(case_of("ddp", 2, launcher="ray"), folder / "no-log"):
        assert not page.exists()
