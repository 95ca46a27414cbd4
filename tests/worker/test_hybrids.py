"""Launches of shards and pipelines with and without replicas: samples, bytes, and that reports' checks hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.analysis import load
from ddpbench.analysis.invariants import check_cases
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.table.result import case_results
from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.naming import Namer
from ddpbench.records import Held, read_launch
from ddpbench.records.plan import read_plan
from tests.processes import nothing_left_behind

__all__ = ["nothing_left_behind"]

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left_behind")]

EXPERIMENT = """
question = "What are replicas of shards and of pipelines worth?"
[base]
workload = "mlp:small"
world_size = 4
local_batch = 4
[axes]
strategy = ["fsdp", "pipeline"]
"options.fsdp.replicas" = [1, 2]
"options.pipeline.replicas" = [1, 2]
[budget]
rounds_min = 1
rounds_max = 1
measured_s = "60 ms"
hang_timeout = "30 s"
"""


@pytest.mark.thorough
def test_hybrids_count_the_job_s_samples_once_and_hold_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "hybrids.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    run = Sweep(prepare(SweepRequest(experiment=path, out=tmp_path / "run")), Listener()).run().run
    plan = read_plan(run)
    frame = load(run).set_index("case_id")
    cases = {entry.case.case_id: entry.case for entry in plan.cases if entry.case.strategy != "single"}
    hybrids = {(case.strategy, case.options["replicas"]) for case in cases.values()}
    assert hybrids == {("fsdp", 1), ("fsdp", 2), ("pipeline", 1), ("pipeline", 2)}
    namer = Namer(cases.values())
    names = {case_id: namer.full(case) for case_id, case in cases.items()}
    assert len(set(names.values())) == 4
    assert all(f"replicas={case.options['replicas']}" in names[case.case_id] for case in cases.values())
    for case_id, case in cases.items():
        row = frame.loc[case_id]
        assert row["status"] == "ok", row
        assert row["global_batch"] == 16
        assert row["samples_per_s"] == pytest.approx(16 / row["step_time_s"])
        assert row["comm_time_s"] > 0
        (directory,) = run.launches(case_id)
        ranks = read_launch(directory).ranks
        blocks = [[one for one in rank.records if getattr(one, "phase", "") == "timed"] for rank in ranks]
        for own in blocks:
            assert own
            assert all(block.samples == 4 * block.steps for block in own)
        held = sum(rank.of(Held)[0].parameter_bytes for rank in ranks)
        assert held == case.options["replicas"] * row["gradient_bytes"]
    whole = read_cases(run, plan)
    checked = check_cases(case_results(whole, plan.target_half_widths(), {}))
    # A single launch, of ranks that share cores: how long its instrumented steps take is chance.
    assert {violation.invariant for violation in checked.violations} <= {"instrumented_as_timed"}, (
        checked.line
    )
