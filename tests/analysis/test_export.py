"""A run for other programs: compared with their own readers, and with the records."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import ddpbench
from ddpbench.analysis.export import STEP_COLUMNS, TRANSFER_COLUMNS, exported
from ddpbench.analysis.export.formats import statistics_of
from ddpbench.cli import run as run_cli
from ddpbench.errors import RequestError
from ddpbench.records import RunDir
from tests.synthetic import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_run(tmp_path_factory.mktemp("export") / "run", 6, rounds=5, failing=1)


def test_steps_are_those_of_the_blocks(run: RunDir) -> None:
    steps, cases = ddpbench.load_steps(run.path), ddpbench.load(run.path).set_index("case_id")
    assert list(steps.columns) == list(STEP_COLUMNS)
    assert {name: str(dtype) for name, dtype in steps.dtypes.items()} == {
        name: dtype for name, (dtype, _) in STEP_COLUMNS.items()
    }
    timed = steps[(steps["phase"] == "timed") & (steps["rank"] == 0)]
    by_launch = timed.groupby(["case_id", "round"])["step_time_s"].mean().groupby("case_id").median()
    for case_id, middle in by_launch.items():
        assert middle == pytest.approx(cases.loc[case_id, "step_time_s"], rel=1e-3)
    counted = timed.groupby("case_id").size()
    for case_id, count in counted.items():
        assert count == cases.loc[case_id, "steps"]
    assert "failed" not in set(cases.loc[sorted(set(steps["case_id"])), "status"])


def test_transfers_lie_within_their_steps(run: RunDir) -> None:
    transfers = ddpbench.load_transfers(run.path)
    assert list(transfers.columns) == list(TRANSFER_COLUMNS)
    assert len(transfers)
    assert set(transfers["op"]) <= {"all_reduce", "gather", "scatter"}
    assert (transfers["handed_over_s"] >= 0).all()
    assert (transfers["duration_s"] > 0).all()
    assert (transfers["bytes"] > 0).all()


def test_a_table_comes_back_from_csv(run: RunDir) -> None:
    for table in ("cases", "steps", "transfers"):
        frame = pd.read_csv(io.BytesIO(exported(run, "csv", table)))
        assert len(frame) > 0
    assert len(pd.read_csv(io.BytesIO(exported(run, "csv")))) == len(ddpbench.load(run.path))


def test_openmetrics_parses_and_says_what_the_table_says(run: RunDir) -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(exported(run, "openmetrics").decode())
    }
    table = ddpbench.load(run.path)
    ok = table[table["status"] == "ok"].set_index("case_id")
    samples = {
        (sample.labels["case_id"], sample.labels["end"]): sample.value
        for sample in families["ddpbench_step_time_seconds"].samples
    }
    assert len(samples) == 3 * len(ok)
    for case_id, row in ok.iterrows():
        assert samples[case_id, "value"] == pytest.approx(row["step_time_s"])
        assert samples[case_id, "low"] == pytest.approx(row["step_time_ci_low_s"])
        assert samples[case_id, "high"] == pytest.approx(row["step_time_ci_high_s"])
    assert "ddpbench_speedup_ratio" in families


def test_pytest_benchmark_reads_what_it_would_have_saved(run: RunDir, tmp_path: Path) -> None:
    saved = tmp_path / "Linux" / "0001_run.json"
    saved.parent.mkdir()
    saved.write_bytes(exported(run, "pytest-benchmark"))
    data = json.loads(saved.read_text())
    names = [one["name"] for one in data["benchmarks"]]
    assert len(set(names)) == len(names) == 5
    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "--storage", tmp_path, "compare", "--columns=mean,rounds"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in names), done.stdout


def test_statistics_are_pytest_benchmarks_own() -> None:
    from pytest_benchmark.stats import Stats

    values = [0.1, 0.11, 0.105, 0.2, 0.099, 0.102, 0.104]
    theirs = Stats()
    for value in values:
        theirs.update(value)
    ours = statistics_of(values)
    for name in ("min", "max", "mean", "stddev", "rounds", "median", "ops", "total"):
        assert ours[name] == pytest.approx(getattr(theirs, name)), name


def test_what_a_format_does_not_hold_is_said(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RequestError, match="use csv or parquet for its steps"):
        exported(run, "openmetrics", "steps")
    assert run_cli(["export", str(run.path / "none"), "--format", "csv"]) == 2
    assert "none" in capsys.readouterr().err


def test_the_command_writes_a_file(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "steps.csv"
    assert run_cli(["export", str(run.path), "--format", "csv", "--table", "steps", "--out", str(out)]) == 0
    assert out.read_text().startswith(",".join(STEP_COLUMNS))
