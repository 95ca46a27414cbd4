"""`ddpbench submit` on a real Slurm of two nodes: measured, cancelled, out of time, requeued, a node lost, refused."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ddpbench
from ddpbench.launch.slurm.submission import open_submission
from ddpbench.records import RunDir
from ddpbench.records.sessions import read_sessions
from tests.failures.conftest import ROOT, experiment_text, workload
from tests.processes import nothing_left_behind
from tests.slurm.cluster import Cluster, cluster, missing

__all__ = ["nothing_left_behind"]

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is here"),
]
WITHIN_S = 200.0
REQUEUES = int(os.environ.get("DDPBENCH_TEST_REQUEUES", "3"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(autouse=True)
def clean(nothing_left_behind: None) -> None:
    """Check after every test that nothing is left behind."""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(name: str = "Sound", **settings: object) -> Path:
        path = tmp_path / "faults.toml"
        text = experiment_text([workload(name)], **settings)  # type: ignore[arg-type]
        path.write_text(text.replace("world_size = 2\n", "").replace("[axes]", "[axes]\nworld_size = [1, 2]"))
        return path

    return written


def start(slurm: Cluster, *arguments: object, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ddpbench", "submit", *map(str, arguments)],
        env=os.environ | slurm.env | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def ended(client: subprocess.Popen[str]) -> tuple[int, str]:
    """Return its exit code, and all its output."""
    try:
        out, messages = client.communicate(timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        client.kill()
        out, messages = client.communicate()
        pytest.fail(f"still at work after {WITHIN_S} s\n{out}{messages}")
    return client.returncode, out + messages


def submit(slurm: Cluster, *arguments: object, **env: str) -> tuple[int, str]:
    return ended(start(slurm, *arguments, **env))


def jobs_of(out: Path) -> dict[int, list[str]]:
    return {size.shape.nodes: [job.job_id for job in size.jobs] for size in open_submission(out).sizes}


def await_job(out: Path, nodes: int = 1) -> str:
    """Return the id of the job on this many nodes, once it is submitted."""
    deadline = time.monotonic() + 60
    while True:
        if (out / "submission.json").exists() and (jobs := jobs_of(out).get(nodes)):
            return jobs[-1]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def outcomes(run: Path) -> dict[str, bytes]:
    """Return each finished launch's outcome as bytes."""
    paths = run.glob("cases/*/launch-*/outcome.json")
    return {str(path.relative_to(run)): path.read_bytes() for path in paths if "aside" not in str(path)}


def launches(run: Path) -> set[int]:
    """Return the numbers of launches of the cases in their allocation; a single number if all have the same."""
    frame = ddpbench.load(run)
    return {int(count) for count in frame[frame["status"] != "skipped"]["launches"]}


def await_launches(run: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while len(outcomes(run)) < count:
        assert time.monotonic() < deadline, f"{len(outcomes(run))} of {count} launches"
        time.sleep(0.1)


def test_all_sizes_become_one_report(slurm: Cluster, write: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / 'it\'s # a "submission" 100 %'
    asked = (write(rounds=2), "--nodes", "1,2", "--out", out)
    odd = "a \"b\" 'c' \\ # $HOME"
    code, output = submit(
        slurm, *asked, "--partition", "debug", "--sbatch", f"comment={odd}", "--setup", "cd /"
    )
    assert code == 0, output
    assert "merged/report.html" in output
    frame = ddpbench.load(out / "merged")
    assert set(frame["status"]) == {"ok"}, output
    assert set(frame["launcher"]) == {"slurm"}
    shapes = {(row.strategy, row.world_size, row.nodes): row.launches for row in frame.itertuples()}
    # The base case was measured in both allocations, so that each speed-up uses its own nodes and rounds.
    assert shapes == {("ddp", 1, 1): 2, ("ddp", 2, 2): 2, ("single", 1, 1): 4}
    submitted = jobs_of(out)
    machine = json.loads((out / "merged/machine.json").read_text())
    told_jobs = machine["context"]["slurm_jobs"]
    assert [(job["job_id"], job["nodes"], job["slots"]) for job in told_jobs] == [
        (submitted[1][0], 1, 1),
        (submitted[2][0], 2, 2),
    ]
    assert all(job["queue_wait_s"] is not None for job in told_jobs)
    assert slurm.ask("squeue", "-h", "-t", "all", "-o", "%k", "-j", submitted[1][0]).strip() == odd
    before = outcomes(out / "nodes-1") | outcomes(out / "nodes-2")
    code, output = submit(slurm, *asked)  # the same command
    assert code == 0, output
    assert jobs_of(out) == submitted
    assert outcomes(out / "nodes-1") | outcomes(out / "nodes-2") == before


@pytest.mark.thorough
def test_requeued_jobs_lose_and_repeat_nothing(
    slurm: Cluster, write: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    run = out / "nodes-2"
    client = start(slurm, write(rounds=2 * REQUEUES + 4), "--nodes", "2", "--out", out)
    job_id = await_job(out, 2)
    draw = random.Random(REQUEUES)
    seen: dict[str, bytes] = {}
    for number in range(REQUEUES):
        await_launches(run, len(seen) + 1)
        time.sleep(draw.uniform(0.0, 1.5))
        seen = outcomes(run)
        slurm.ask("scontrol", "requeue", job_id)
        deadline = time.monotonic() + 60
        while slurm.job(job_id).get("Restarts") != str(number + 1):
            assert time.monotonic() < deadline, slurm.job(job_id)
            time.sleep(0.2)
        now = outcomes(run)
        assert {name: now.get(name) for name in seen} == seen
        seen = now
    code, output = ended(client)
    assert code == 0, output
    after = outcomes(run)
    assert {name: after.get(name) for name in seen} == seen
    assert launches(run) == {2 * REQUEUES + 4}, output
    assert jobs_of(out) == {2: [job_id]}
    context = json.loads((run / "machine.json").read_text())["context"]
    assert [job["restarts"] for job in context["slurm_jobs"]] == sorted(
        {job["restarts"] for job in context["slurm_jobs"]}
    )


@pytest.mark.thorough
def test_a_time_limit_ends_a_job_and_not_the_measurement(
    slurm: Cluster, write: Callable[..., Path], tmp_path: Path
) -> None:
    out, mark = tmp_path / "run", tmp_path / "mark"
    experiment = write("WaitsWhileMarked", rounds=3, hang_timeout="10 min")
    client = start(
        slurm, experiment, "--nodes", "1", "--time", "1", "--out", out, DDPBENCH_TEST_MARK=str(mark)
    )
    job_id = await_job(out)
    await_launches(out / "nodes-1", 1)
    mark.touch()  # from now on no launch finishes
    assert slurm.wait_for(job_id, "TIMEOUT", within_s=150) == "TIMEOUT"
    before = outcomes(out / "nodes-1")
    mark.unlink()
    code, output = ended(client)
    assert code == 0, output
    assert f"job {job_id} ended as TIMEOUT; it will be submitted again" in output
    after = outcomes(out / "nodes-1")
    assert {name: after.get(name) for name in before} == before
    assert launches(out / "nodes-1") == {3}
    assert len(jobs_of(out)[1]) == 2


@pytest.mark.thorough
def test_a_cancelled_job_stays_cancelled_until_the_command_comes_again(
    slurm: Cluster, write: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    experiment = write(rounds=4)
    client = start(slurm, experiment, "--nodes", "1", "--out", out)
    job_id = await_job(out)
    await_launches(out / "nodes-1", 2)
    slurm.ask("scancel", job_id)
    code, output = ended(client)
    assert code == 1, output
    assert f"1 node: job {job_id} was cancelled" in output
    assert f"continue with: ddpbench submit {out}" in output
    before = outcomes(out / "nodes-1")
    assert read_sessions(RunDir(out / "nodes-1"))[-1]["stop_reason"] in ("interrupted", "failed")
    code, output = submit(slurm, out)
    assert code == 0, output
    after = outcomes(out / "nodes-1")
    assert {name: after.get(name) for name in before} == before
    assert launches(out / "nodes-1") == {4}


@pytest.mark.thorough
def test_a_lost_node_is_waited_for(slurm: Cluster, write: Callable[..., Path], tmp_path: Path) -> None:
    out, mark = tmp_path / "run", tmp_path / "mark"
    experiment = write("WaitsWhileMarked", rounds=3, hang_timeout="10 min")
    client = start(slurm, experiment, "--nodes", "2", "--out", out, DDPBENCH_TEST_MARK=str(mark))
    job_id = await_job(out, 2)
    await_launches(out / "nodes-2", 2)
    mark.touch()
    before = outcomes(out / "nodes-2")
    slurm.kill("n2")
    deadline = time.monotonic() + 90
    while int(slurm.job(job_id).get("Restarts", "0")) < 1:
        assert time.monotonic() < deadline, slurm.job(job_id)
        time.sleep(0.5)
    mark.unlink()
    slurm.start("n2")
    code, output = ended(client)
    assert code == 0, output
    after = outcomes(out / "nodes-2")
    assert {name: after.get(name) for name in before} == before
    assert launches(out / "nodes-2") == {3}


@pytest.mark.thorough
def test_who_leaves_finds_the_jobs_again(slurm: Cluster, write: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    asked = (write(rounds=4), "--nodes", "1", "--out", out)
    client = start(slurm, *asked)
    job_id = await_job(out)
    await_launches(out / "nodes-1", 1)
    code, output = submit(slurm, *asked)
    assert code == 2, output
    assert "in use by ddpbench submit (process " in output
    client.send_signal(signal.SIGINT)
    code, output = ended(client)
    assert code == 130, output
    assert "the jobs continue" in output
    assert f"scancel {job_id}" in output
    code, output = submit(slurm, *asked)
    assert code == 0, output
    assert jobs_of(out) == {1: [job_id]}


@pytest.mark.thorough
def test_a_job_whose_submission_was_never_noted_is_found(
    slurm: Cluster, write: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    asked = (write(rounds=3), "--nodes", "1", "--out", out)
    code, output = submit(slurm, *asked, "--detach")
    assert code == 0, output
    (job_id,) = jobs_of(out)[1]
    stored = json.loads((out / "submission.json").read_text())
    stored["sizes"][0]["jobs"] = []  # as if it had been killed between sbatch and its note
    (out / "submission.json").write_text(json.dumps(stored))
    code, output = submit(slurm, *asked)
    assert code == 0, output
    assert f"found job {job_id}, submitted before" in output
    assert jobs_of(out) == {1: [job_id]}


def test_who_detaches_is_told_how_to_come_back(
    slurm: Cluster, write: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, output = submit(slurm, write(rounds=1), "--nodes", "1", "--detach", "--out", out)
    assert code == 0, output
    assert f"make the report: ddpbench submit {out}" in output
    slurm.wait_for(await_job(out), "COMPLETED")
    code, output = submit(slurm, out)
    assert code == 0, output
    assert "nodes-1/report.html" in output


@pytest.mark.thorough
def test_a_sweep_within_a_job_has_srun_for_a_launcher(
    slurm: Cluster, write: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    experiment = write(rounds=1)
    text = experiment.read_text().replace("[axes]", '[axes]\nlauncher = ["local", "srun"]')
    experiment.write_text(text.replace("world_size = [1, 2]", "world_size = [2]"))
    script = tmp_path / "job.sh"
    line = shlex.join([sys.executable, "-m", "ddpbench", "sweep", str(experiment), "--out", str(out)])
    script.write_text(f"#!/bin/bash\n#SBATCH --output={tmp_path}/job.out\ncd {ROOT}\n{line}\n")
    done = subprocess.run(
        ["sbatch", "--parsable", script],
        env=os.environ | slurm.env,
        capture_output=True,
        text=True,
        check=True,
    )
    state = slurm.wait_for(done.stdout.strip(), "COMPLETED", "FAILED", within_s=120)
    assert state == "COMPLETED", (tmp_path / "job.out").read_text()
    frame = ddpbench.load(out)
    assert {(row.strategy, row.launcher, row.status) for row in frame.itertuples()} == {
        (strategy, launcher, "ok") for strategy in ("ddp", "single") for launcher in ("local", "srun")
    }


def test_the_nodes_of_a_job_check_each_other(slurm: Cluster) -> None:
    done = subprocess.run(
        [
            "srun",
            "--nodes=2",
            "--ntasks-per-node=2",
            sys.executable,
            "-m",
            "ddpbench",
            "doctor",
            "--nodes",
            "slurm",
        ],
        env=os.environ | slurm.env,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done
    assert "these 2 nodes can train together" in done.stdout
    assert done.stdout.count("Gbit/s there") == 1  # reported once, by the first


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--nodes", "1", "--partition", "nope"), "Slurm has no such partition"),
        (("--nodes", "1,9"), "--nodes 9: the partition debug has 2 nodes"),
        (
            ("--nodes", "1", "--partition", "short", "--time", "2:00:00"),
            "the jobs ask for 120 min, but the limit of partition short is 30 min",
        ),
        (("--nodes", "1", "--constraint", "nope"), "Invalid feature specification"),
        (
            ("--nodes", "1", "--gres", "gpu:2"),
            "add --set base.device=cuda (or base.device=cpu to keep CPUs)",
        ),
        (
            ("--nodes", "1", "--gres", "gpu:2", "--set", "base.device=cpu"),
            "Invalid generic resource",
        ),
        (("--nodes", "1", "--sbatch", "nope=1"), "unrecognized option"),
        (("--nodes", "1", "--ranks-per-node", "64"), "sbatch refuses"),
    ],
)
def test_what_slurm_never_gives_is_refused_and_nothing_stays(
    slurm: Cluster, write: Callable[..., Path], tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    out = tmp_path / "run"
    code, output = submit(slurm, write(rounds=1), *flags, "--out", out)
    assert code == 2, output
    assert sentence in output
    assert not out.exists()
    assert not slurm.ask("squeue", "-h")


@pytest.mark.thorough
def test_an_account_that_is_refused_is_said_while_the_job_waits(
    slurm: Cluster, write: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    client = start(slurm, write(rounds=1), "--nodes", "1", "--partition", "closed", "--out", out)
    job_id = await_job(out)
    time.sleep(8)
    slurm.ask("scancel", job_id)
    code, output = ended(client)
    assert code == 1, output
    assert "closed allows physics" in output
    assert "nothing was measured" in output


def test_slurm_away_is_said(tmp_path: Path, write: Callable[..., Path], slurm: Cluster) -> None:
    nowhere = tmp_path / "slurm.conf"
    nowhere.write_text(
        (slurm.folder / "slurm.conf").read_text().replace("SlurmctldPort=", "SlurmctldPort=1 #")
    )
    code, output = submit(
        slurm, write(rounds=1), "--nodes", "1", "--out", tmp_path / "run", SLURM_CONF=str(nowhere)
    )
    assert code == 1, output
    assert "Unable to contact slurm controller" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_nodes_with_disks_of_their_own(slurm: Cluster, write: Callable[..., Path], tmp_path: Path) -> None:
    """Each node has a folder that neither the other nor the login sees; the first job is cancelled."""
    run = tmp_path / "run"
    disks = tmp_path / "disks"
    flags = ("--nodes", "2", "--local", f"{disks}/$SLURMD_NODENAME", "--out", run)
    client = start(slurm, write(rounds=4), *flags)
    deadline = time.monotonic() + 60
    while len(list(disks.glob("*/ddpbench-*/cases/*/launch-*/outcome.json"))) < 2:
        assert time.monotonic() < deadline, ended(client)
        time.sleep(0.05)
    slurm.ask("scancel", open_submission(run).sizes[0].jobs[0].job_id)
    code, output = ended(client)
    assert (code, "was cancelled" in output) == (1, True), output
    here = RunDir(run / "nodes-2")
    before = {path: path.read_bytes() for path in here.path.glob("cases/*/launch-*/outcome.json")}
    assert len(before) >= 2
    shutil.rmtree(disks)  # the next job may get other nodes
    code, output = submit(slurm, run)
    assert code == 0, output
    assert {each.name for each in disks.iterdir()} == {"n1", "n2"}
    assert {path: path.read_bytes() for path in before} == before, "launches were made again"
    frame = ddpbench.load(here.path)
    assert set(frame["status"]) == {"ok"}
    assert set(frame["launches"]) == {4}
    assert all(job.fetched for job in open_submission(run).sizes[0].jobs)
    script = here.path / "job.sbatch"
    assert script.stat().st_mode & 0o077 == 0  # the job's key is in it
