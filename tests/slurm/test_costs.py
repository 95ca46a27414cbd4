"""Costs of jobs in `submit --dry-run`, compared with numbers calculated by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpbench.cli import run
from ddpbench.launch.external import JobShape
from ddpbench.launch.slurm.costs import SizeCosts, gpus_per_node, total
from ddpbench.launch.slurm.request import Option, Request
from ddpbench.spec import Case


def costs(**changed: object) -> SizeCosts:
    usual = {"name": "2 nodes", "nodes": 2, "gpus_per_node": 0, "least": 10, "most": 40, "proofs": 2}
    return SizeCosts(**usual | {"estimated_s": 1800.0, "limit_s": 3600.0} | changed)  # type: ignore[arg-type]


def test_hours_are_nodes_times_time_and_gpu_hours_gpus_times_that() -> None:
    assert costs(gpus_per_node=8).sentence() == (
        "2 nodes: 10 to 40 launches and 2 proofs; about 1 node hours (at most 2), about 8 GPU hours (at most 16); "
        "time limit 1 h 0 min"
    )
    assert costs(least=1, most=1, proofs=0, name="1 node", nodes=1).sentence() == (
        "1 node: 1 launch; about 0.5 node hours (at most 1); time limit 1 h 0 min"
    )


def test_a_short_time_limit_means_several_jobs() -> None:
    found = costs(estimated_s=9000.0, limit_s=3600.0)
    assert found.jobs == 3
    assert found.sentence().endswith(
        "about 5 node hours (at most 6); time limit 1 h 0 min, so about 3 jobs one after the other"
    )


def test_all_jobs_together() -> None:
    one = costs(name="1 node", nodes=1, gpus_per_node=4, least=5, most=20)
    assert total([one, costs(gpus_per_node=4)]) == (
        "all jobs: 15 to 60 launches; about 1.5 node hours (at most 3), about 6 GPU hours (at most 12)"
    )


@pytest.mark.parametrize(
    ("options", "device", "count"),
    [
        ({}, "cpu", 0),
        ({}, "cuda", 4),  # each rank gets a GPU
        ({"gres": "gpu:8"}, "cuda", 8),
        ({"gres": "gpu:a100:8"}, "cpu", 8),
        ({"gres": "nvme:1,gpu:h100:2(S:0-1)"}, "cpu", 2),
        ({"gres": "gpu"}, "cpu", 1),
        ({"gres": "nvme:1"}, "cpu", 0),
        ({"gpus-per-node": "a100:4,v100:2"}, "cpu", 6),
        ({"gpus-per-task": "2"}, "cpu", 8),
        ({"gpus": "8"}, "cpu", 4),
        ({"tres-per-task": "gres/gpu:1"}, "cpu", 4),
    ],
)
def test_gpus_are_those_that_the_job_asks_for(options: dict[str, str], device: str, count: float) -> None:
    asked = tuple(Option(name=name, value=value) for name, value in options.items())
    request = Request(sizes=(2,), ranks_per_node=4, options=asked)
    cases = [Case(workload="mlp:small", strategy="ddp", device=device)]  # type: ignore[arg-type]
    assert gpus_per_node(request, JobShape(2, 4), cases) == count


def test_a_dry_run_says_what_each_job_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tmp_path / "e.toml"
    experiment.write_text(
        'question = "?"\n[base]\nworkload = "mlp:small"\n'
        '[axes]\nstrategy = ["single", "ddp"]\nworld_size = [1, 2]\n'
        "[budget]\nrounds_min = 3\nrounds_max = 7\n"
    )
    flags = ["--nodes", "1,2", "--time", "30", "--gres", "gpu:4", "--set", "base.device=cpu"]
    assert run(["submit", str(experiment), *flags, "--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    # 1 node: single and ddp on one rank; two nodes: ddp on two, and the base case of its speed-up.
    for name, count in (("1 node", 2), ("2 nodes", 2)):
        (line,) = (line for line in lines if line.startswith(f"# {name}: "))
        assert f"{3 * count} to {7 * count} launches and {count} proofs" in line
        assert line.endswith("; time limit 30 min")
        hours = [float(text) for text in re.findall(r"at most ([\d.]+)", line)]
        assert hours == [0.5 * int(name[0]), 2.0 * int(name[0])]
    (line,) = (line for line in lines if line.startswith("# all jobs: "))
    assert "12 to 28 launches" in line
    assert [float(text) for text in re.findall(r"at most ([\d.]+)", line)] == [1.5, 6.0]
    (line,) = (line for line in lines if "rounds resolve a difference" in line)
    assert line.startswith("# 7 rounds resolve a difference of 2 % between two cases if ")
    few = ["--set", "budget.rounds_max=4"]
    assert run(["submit", str(experiment), *flags, *few, "--dry-run", "--out", str(tmp_path / "few")]) == 0
    assert capsys.readouterr().out.count("# warning: under 5 rounds are too few to tell cases apart") == 1
