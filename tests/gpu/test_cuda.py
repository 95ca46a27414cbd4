"""CUDA and nccl, on a machine that has them: the clock, the proofs, a sweep."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import ddpbench
from ddpbench.measure.clock import CudaClock

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and `pytest -m gpu`"),
]


def test_device_moments_stand_on_the_hosts_clock() -> None:
    clock = CudaClock()
    before = time.perf_counter_ns()
    first = clock.mark()
    torch.cuda._sleep(200_000_000)  # cycles: a tenth of a second at 2 GHz
    second = clock.mark()
    start, end = clock.resolve([first, second])
    after = time.perf_counter_ns()
    assert before - 100_000 <= start < end <= after + 100_000
    assert end - start > 20_000_000


def test_the_random_state_of_every_device_is_kept_for_a_replica() -> None:
    from ddpbench.worker.verify import own_steps

    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    own_steps._seed(5)
    first = [torch.rand(4, device=device) for device in devices]
    kept = own_steps._random_state()
    second = [torch.rand(4, device=device) for device in devices]
    own_steps._set_random_state(kept)
    assert all(torch.equal(torch.rand(4, device=one.device), one) for one in second)
    own_steps._seed(5)
    assert all(torch.equal(torch.rand(4, device=one.device), one) for one in first)


def test_every_strategy_is_proved_on_the_gpus_at_hand() -> None:
    worlds = [str(n) for n in (1, 2, 4) if n <= torch.cuda.device_count()]
    command = [
        sys.executable,
        "-m",
        "ddpbench",
        "verify",
        "--backend",
        "nccl",
        "--json",
        "--world-size",
        *worlds,
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    verdicts = json.loads(result.stdout)
    assert result.returncode == 0, [verdict for verdict in verdicts if verdict["status"] == "failed"]
    assert sum(verdict["status"] == "ok" for verdict in verdicts) >= 8


def test_a_sweep_takes_the_gpus_and_nccl(tmp_path: Path) -> None:
    run = ddpbench.sweep(
        "quick",
        out=tmp_path / "run",
        overrides=["budget.rounds_min=1", "budget.rounds_max=1", "budget.measured_s=0.2"],
    )
    frame = ddpbench.load(run)
    ddp = frame[frame["strategy"] == "ddp"]
    assert set(ddp["device"]) == {"cuda"}
    assert set(ddp["backend"]) == {"nccl"}
    assert (frame["status"] == "ok").all(), frame[["case_id", "status", "error"]]
    assert (ddp["step_time_s"] > 0).all()
    assert (ddp["exposed_comm_s"] >= 0).all()
