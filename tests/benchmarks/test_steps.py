"""A training step of each strategy in pytest-benchmark: its rounds are a sweep's rounds, each of new ranks.

    pytest tests/benchmarks/test_steps.py --benchmark-autosave
    pytest tests/benchmarks/test_steps.py --benchmark-compare --benchmark-compare-fail=median:10%

One sweep measures all cases, each round in random order; the tests then pass its step times to
pytest-benchmark through a timer that advances by what the ranks measured. So drift affects all of them
alike, as in any sweep, and saved runs can be compared, plotted and failed on with pytest-benchmark's options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddpbench.analysis import load, summarize
from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.pytest_plugin import MeasuredTimer
from ddpbench.records import RunDir
from tests.frames import framed

pytestmark = pytest.mark.multiprocess

EXPERIMENT = """
question = "Did a training step become slower?"
[base]
workload = "gpt:nano"
local_batch = 4
[axes]
strategy = ["single", "data_parallel", "ddp", "master"]
world_size = [1, 2]
bucket_cap_mb = ["default", 0.1]
[[exclude]]
strategy = "single"
world_size = 2
[budget]
rounds_min = {rounds}
rounds_max = {rounds}
measured_s = {measured}
total = "10 min"
"""
CASES = [
    *[("single", 1, None), ("data_parallel", 1, None), ("data_parallel", 2, None)],
    *[("ddp", world, cap) for world in (1, 2) for cap in ("default", "0.1")],
    *[("master", 1, None), ("master", 2, None)],
]


TIMER = MeasuredTimer()


@dataclass(frozen=True, slots=True)
class Measured:
    """Run the sweep of the tests."""

    cases: pd.DataFrame
    launches: pd.DataFrame
    identity: dict[str, Any]


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    once = bool(request.config.getoption("benchmark_disable", default=False))
    folder: Path = tmp_path_factory.mktemp("steps")
    path = folder / "steps.toml"
    path.write_text(
        EXPERIMENT.format(rounds=1 if once else 5, measured=0.05 if once else 0.6), encoding="utf-8"
    )
    run = RunDir(folder / "run")
    Sweep(prepare(SweepRequest(experiment=path, out=run.path)), Listener()).run()
    machine = json.loads(run.machine.read_text(encoding="utf-8"))
    return Measured(load(run), framed(summarize(run).steps.launches), machine["identity"])


@pytest.mark.thorough
@pytest.mark.benchmark(timer=TIMER)
@pytest.mark.parametrize(("strategy", "world", "bucket"), CASES)
def test_step(benchmark: Any, measured: Measured, strategy: str, world: int, bucket: str | None) -> None:
    table = measured.cases
    chosen = (table["strategy"] == strategy) & (table["world_size"] == world)
    if bucket is not None:
        chosen &= table["bucket_cap_mb"].astype(str) == bucket
    rows = table[chosen]
    assert len(rows) == 1, rows
    row = rows.iloc[0]
    assert row["status"] == "ok", row["error"]
    launches = measured.launches[measured.launches["case_id"] == row["case_id"]].sort_values("round")
    rounds = iter(launches["step_time_s"])
    benchmark.group = f"step at {world} rank{'s' if world != 1 else ''}"
    benchmark.extra_info.update(
        identity=measured.identity,
        case_id=row["case_id"],
        actual_bucket_bytes=None if pd.isna(row["actual_bucket_bytes"]) else row["actual_bucket_bytes"],
        exposed_comm_s=None if pd.isna(row["exposed_comm_s"]) else float(row["exposed_comm_s"]),
        samples_per_s=float(row["samples_per_s"]),
        noise_flag="" if pd.isna(row["noise_flag"]) else row["noise_flag"],
    )

    def one_round() -> float:
        seconds = float(next(rounds))
        TIMER.advance(seconds)
        return seconds

    step_s = benchmark.pedantic(one_round, rounds=len(launches), iterations=1)
    assert step_s > 0
