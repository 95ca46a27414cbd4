"""MPI in addition to gloo in real sweeps: under every launcher, on emulated links too; and without an MPI library."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import ddpbench
from tests.failures.conftest import ROOT, run_cli
from tests.failures.launchers import agents, await_all, environment, free_port, plan
from tests.folders import copy_tree

pytestmark = pytest.mark.multiprocess

TEXT = """
[base]
workload = "mlp:small"
local_batch = 4
device = "cpu"
world_size = 2
{more}
[axes]
backend = ["gloo", "mpi"]
strategy = ["ddp", "master"]
[budget]
rounds_min = {rounds}
rounds_max = {rounds}
measured_s = "60 ms"
"""


def written(folder: Path, more: str = "", rounds: int = 1) -> Path:
    path = folder / "backends.toml"
    path.write_text(TEXT.format(more=more, rounds=rounds), encoding="utf-8")
    return path


def segments() -> list[Path]:
    return [*Path("/dev/shm").glob("mpich_shm_*")]


def all_ok(run: Path) -> None:
    frame = ddpbench.load(run)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    assert sorted(frame["backend"].dropna()) == ["gloo", "gloo", "mpi", "mpi"]
    identity = json.loads((run / "machine.json").read_text(encoding="utf-8"))["identity"]
    assert identity["mpi"].startswith("MPICH ")


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.thorough)])
def test_a_sweep_compares_gloo_and_mpi(tmp_path: Path, rounds: int) -> None:
    run = tmp_path / "run"
    done = run_cli("sweep", written(tmp_path, rounds=rounds), "--out", run)
    assert done.returncode == 0, done.stderr
    all_ok(run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "DDP mpi" in page
    assert "DDP gloo" in page
    assert segments() == []


@pytest.mark.thorough
def test_torchruns_ranks_form_mpis_world(tmp_path: Path) -> None:
    run = plan(written(tmp_path), tmp_path / "run", nodes=1, ranks=2)
    ended = await_all(agents([run], ranks=2))
    assert [one.code for one in ended] == [0], ended
    all_ok(run)


@pytest.mark.thorough
def test_mpiexecs_ranks_form_it_too(tmp_path: Path) -> None:
    """mpiexec's own process manager knows of as many ranks; a case may have fewer."""
    run = plan(written(tmp_path), tmp_path / "run", nodes=1, ranks=2)
    line = (
        "RANK=$PMI_RANK WORLD_SIZE=$PMI_SIZE LOCAL_RANK=$PMI_RANK NODE_RANK=0 MASTER_ADDR=127.0.0.1 "
        f"MASTER_PORT={free_port()} exec {sys.executable} -m ddpbench.worker {run}"
    )
    mpiexec = Path(sys.executable).parent / "mpiexec"
    done = subprocess.run(
        [mpiexec, "-n", "2", "bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    all_ok(run)


@pytest.mark.parametrize("killed", ["rank", pytest.param("sweep", marks=pytest.mark.thorough)])
def test_a_kill_leaves_nothing_in_shared_memory(tmp_path: Path, killed: str) -> None:
    run = tmp_path / "run"
    path = written(tmp_path, rounds=5)
    planned = run_cli("sweep", path, "--out", run, "--dry-run")
    assert planned.returncode == 0
    temporary = tmp_path / "t"
    temporary.mkdir()
    sweep = subprocess.Popen(
        [sys.executable, "-m", "ddpbench", "sweep", path, "--out", run, "--set", "budget.measured_s='20 s'"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**environment(), "TMPDIR": str(temporary)},  # a killed sweep leaves its launch's folder
        cwd=ROOT,
    )
    try:
        rank = _rank_of_mpi(sweep.pid)
        listens = [one.laddr.ip for one in psutil.Process(rank).net_connections() if one.status == "LISTEN"]
        assert set(listens) == {"127.0.0.1"}  # no other host reaches it
        os.kill(rank if killed == "rank" else sweep.pid, signal.SIGKILL)
        _until(lambda: not Path(f"/proc/{rank}").exists() or _state(rank) == "Z")
    finally:
        if sweep.poll() is None:
            sweep.send_signal(signal.SIGINT)
        sweep.wait(60)
    assert segments() == []


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _rank_of_mpi(sweep: int) -> int:
    """Return a process of the sweep that shares memory by MPI, whose name is gone."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for process in psutil.Process(sweep).children(recursive=True):
            try:
                mapped = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if any("/dev/shm/mpich_shm_" in line and "(deleted)" in line for line in mapped.splitlines()):
                return process.pid
        time.sleep(0.02)
    raise AssertionError("no rank of the sweep uses MPI")


@pytest.mark.thorough
@pytest.mark.root
@pytest.mark.links
def test_mpi_stays_on_emulated_links(tmp_path: Path) -> None:
    """At 100 Mbit/s a step's gradients need their time on the link, from any rank: nothing goes by memory."""
    run = tmp_path / "run"
    path = written(tmp_path, '[fabric]\nbandwidth = "100mbit"\nnodes = 2\n', rounds=2)
    done = run_cli("sweep", path, "--out", run)
    assert done.returncode == 0, done.stderr
    all_ok(run)
    frame = ddpbench.load(run).set_index(["strategy", "backend"])
    for strategy in ("ddp", "master"):
        found = frame.loc[(strategy, "mpi")]
        assert found["node_sent_bytes"] >= 0.99 * found["gradient_bytes"]
        assert found["step_time_s"] >= 0.9 * 8 * found["gradient_bytes"] / 100e6


def test_without_mpi_it_is_said_before_anything_starts(tmp_path: Path) -> None:
    hiding = tmp_path / "hiding" / "mpi4py"
    hiding.mkdir(parents=True)
    (hiding / "__init__.py").write_text("raise ImportError('no MPI on this machine')\n", encoding="utf-8")
    given = os.pathsep.join([str(hiding.parent), os.environ.get("PYTHONPATH", "")])
    hidden = tmp_path / "package"
    copy_tree(ROOT / "ddpbench", hidden / "ddpbench")
    shutil.copytree(hiding, hidden / "mpi4py")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ddpbench", "sweep", written(tmp_path)),
            *("--set", "backend=mpi", "--out", tmp_path / "run"),
        ],
        capture_output=True,
        text=True,
        cwd=hidden,
        env={**environment(), "PYTHONPATH": given},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done
    assert "no MPI on this machine" in done.stderr
    assert 'pip install "ddpbench[mpi]"' in done.stderr
    assert not (tmp_path / "run").exists()
