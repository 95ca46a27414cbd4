"""Replays and profiles with a wrong request: a message, exit code 2, nothing started or left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import LaunchDir, Pace, RankOutcome, RunDir, read_launch
from tests.failures.conftest import ROOT, command, run_cli
from tests.failures.test_ranks_that_fail import Outcomes
from tests.workloads.test_profile import data

pytestmark = pytest.mark.multiprocess

OWN = ROOT / "tests/failures/own.py"


PLAIN_DDP = ("--strategy", "ddp", "--algorithm", "all_reduce", "--schedule", "overlapped")


def experiment(folder: Path, profile: str = "tiny.json", base: str = "", **changes: Any) -> Path:
    """Return an experiment with a profile next to it."""
    if changes.pop("write", True):
        (folder / "tiny.json").write_text(json.dumps(data(**changes)), encoding="utf-8")
    path = folder / "replayed.toml"
    path.write_text(
        f"""
[base]
workload = "replay:{profile}"
world_size = 2
{base}
[budget]
rounds_min = 1
rounds_max = 1
measured_s = "200 ms"
""",
        encoding="utf-8",
    )
    return path


def refused(*arguments: object) -> str:
    result = run_cli(*arguments)
    assert result.returncode == 2, result
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_cut_off_profile(tmp_path: Path) -> None:
    path = experiment(tmp_path)
    whole = (tmp_path / "tiny.json").read_text(encoding="utf-8")
    (tmp_path / "tiny.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    said = refused("sweep", path, "--dry-run")
    assert f"base.workload: profile {tmp_path}/tiny.json: it is truncated" in said


def test_another_schema_and_negative_times(tmp_path: Path) -> None:
    said = refused(
        "sweep", experiment(tmp_path, schema={"name": "ddpbench profile", "version": 9}), "--dry-run"
    )
    assert "schema version 9; this ddpbench reads version 1: profile again" in said
    said = refused("sweep", experiment(tmp_path, forward_s=-1.0), "--dry-run")
    assert "forward_s.mean: -1.0 given; must be 0 s to 1 day" in said


def test_a_profile_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    said = refused("sweep", experiment(tmp_path, "gone.json"), "--dry-run")
    assert f"there is no profile {tmp_path}/gone.json or {ROOT}/gone.json" in said
    said = refused("sweep", experiment(tmp_path, "resnet-50"), "--dry-run")
    assert "unknown workload 'replay:resnet-50'; did you mean" in said
    assert "replay:resnet50-v100" in said


def test_a_replay_asked_for_its_loss(tmp_path: Path) -> None:
    said = refused("sweep", experiment(tmp_path, base="evaluation = true"), "--dry-run")
    assert "a replay has no loss: there is nothing to evaluate" in said


def test_dilation_of_what_trains(tmp_path: Path) -> None:
    path = experiment(tmp_path, base="dilation = 3.0")
    said = refused("sweep", path, "--set", "base.workload=mlp", "--dry-run")
    assert "dilation needs replayed computation" in said


def test_a_sweep_of_a_replay_records_its_pace_and_no_loss_and_refuses_another_profile(tmp_path: Path) -> None:
    path = experiment(tmp_path)
    run = RunDir(tmp_path / "run")
    sweep = Sweep(prepare(SweepRequest(experiment=path, out=run.path)), Outcomes())
    sweep.run()
    launches = [
        LaunchDir(folder)
        for folder in sorted(run.path.glob("cases/*/launch-*"))
        if folder.name.endswith("0") and "proof" not in folder.name
    ]
    assert launches
    ranks = [rank for launch in launches for rank in read_launch(launch).ranks]
    assert ranks
    for rank in ranks:
        (outcome,) = rank.of(RankOutcome)
        assert (outcome.status, outcome.final_loss) == ("ok", None)
        paces = rank.of(Pace)
        assert paces
        for pace in paces:
            assert pace.phase == "timed"
            assert all(late >= 0 for late in pace.lateness_ns)
            assert pace.cpu_ns > 0
            assert pace.optimizer_ns > 0
    (tmp_path / "tiny.json").write_text(json.dumps(data(optimizer_s=0.004)), encoding="utf-8")
    said = refused("sweep", run.path)
    assert "workload_digest" in said
    assert "was measured under different conditions" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt:nan"], "unknown workload 'gpt:nan'; did you mean 'gpt:nano'?"),
        (["mlp", "--out", "/nowhere/at/all.json"], "cannot be written: there is no directory /nowhere"),
        (["mlp", "--out", "/tmp"], "the name of a profile must end in .json"),
        (
            ["mlp", "--steps", "1"],
            "--steps: 1 given; must be a whole number, 2 to 1,000,000: fewer give no interval",
        ),
        (["mlp", "--local-batch", "0"], "--local-batch: 0 given; must be a whole number, 1 to 1,000,000"),
        (["mlp", "--device", "cuda"], "no GPU torch can use"),
        (["replay:resnet50-v100"], "already replays a profile"),
        (["mlp", "--set", "options.gpt.block_size=4"], "'gpt' is not used by this experiment"),
        (["mlp", "--set", "axes.local_batch=[2,4]"], "makes several cases, but a profile needs exactly one"),
        (["gone.py:Mine"], "there is no file"),
    ],
)
def test_a_profile_that_cannot_be_made(arguments: list[str], said: str, tmp_path: Path) -> None:
    if "--device" in arguments and Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    assert said in refused("profile", *arguments)


@pytest.mark.parametrize(
    ("name", "batch", "said"),
    [
        (f"{OWN}:Wrong", 4, "its loss failed: KeyError: 'feature'"),
        (f"{OWN}:Infinite", 4, "its loss is inf in the first step"),
        (f"{OWN}:Sound", 4096, "the dataset has 256 samples; one step of this case needs 4096"),
    ],
)
def test_a_workload_that_has_no_profile(name: str, batch: int, said: str, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    assert said in refused("profile", name, "--local-batch", batch, "--steps", 2, "--out", out)
    assert list(tmp_path.iterdir()) == []


UNREACHED = """
import torch
class Unreached:
    def model(self):
        net = torch.nn.Linear(3, 1)
        net.spare = torch.nn.Linear(2, 2)
        return net
    def dataset(self):
        return torch.utils.data.TensorDataset(torch.ones(64, 3))
    def loss(self, model, batch):
        return model(batch[0]).mean()
"""


def test_a_gradient_that_never_comes_is_named(tmp_path: Path) -> None:
    (tmp_path / "own_unreached.py").write_text(UNREACHED, encoding="utf-8")
    name = f"{tmp_path}/own_unreached.py:Unreached"
    said = refused("profile", name, "--steps", 2, "--out", tmp_path / "profile.json")
    assert "spare.weight and 1 more got no gradient in some step" in said
    assert "requires_grad = False" in said
    assert not (tmp_path / "profile.json").exists()


def test_a_profile_is_measured_and_replayed(tmp_path: Path) -> None:
    out = tmp_path / "own.json"
    result = run_cli("profile", f"{OWN}:Sound", "--local-batch", 4, "--steps", 6, "--out", out)
    assert result.returncode == 0, result
    assert f'replay it with workload = "replay:{out}"' in result.stdout
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["source"], found["steps"], found["local_batch"]) == ("measured", 6, 4)
    # 6 numbers as float32, a kind and a label as int64, by hand.
    assert found["sample_bytes"] == 6 * 4 + 8 + 8
    assert {tuple(parameter["shape"]) for parameter in found["parameters"]} == {
        (16, 6),
        (16,),
        (5, 16),
        (4, 16),
        (4,),
    }
    proved = run_cli("verify", "--workload", f"replay:{out}", *PLAIN_DDP, "--world-size", 2)
    assert proved.returncode == 0, proved
    assert "1 proved, 0 not, 0 skipped" in proved.stdout


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    process = subprocess.Popen(
        command("profile", "gpt:nano", "--steps", 100_000, "--out", out),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert "profiling gpt:nano" in process.stdout.readline()
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("ddpbench-profile-*/probe.log")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    left = [path.name for path in tmp_path.iterdir()]
    assert [name for name in left if not name.startswith("torchinductor")] == []  # torch's own cache


@pytest.mark.thorough
def test_replays_are_proved_under_every_strategy(tmp_path: Path) -> None:
    experiment(tmp_path)
    names = ("single", "master", "data_parallel", "independent", "ddp")
    chosen = ("--strategy", *names, *PLAIN_DDP[2:])
    result = run_cli("verify", "--json", "--workload", f"replay:{tmp_path}/tiny.json", *chosen)
    assert result.returncode == 0, result
    found = [(one["strategy"], one["world_size"], one["status"]) for one in json.loads(result.stdout)]
    one_rank = {("single", world) for world in (2, 3, 4)}
    expected = [(name, world) for name in names for world in (1, 2, 3, 4)]
    assert sorted(found) == sorted((*each, "skipped" if each in one_rank else "ok") for each in expected)
