"""Launches of models that are cut into pieces: what is proved and recorded, and how samples are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.analysis import load
from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import CommRecord, Held, Proof, RunDir, StepRecord, read_launch
from tests.processes import nothing_left_behind

__all__ = ["nothing_left_behind"]

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left_behind")]

EXPERIMENT = """
question = "What is a model cut into pieces worth?"
[base]
world_size = 2
local_batch = 4
[axes]
workload = ["mlp:small", "two_branch:small"]
strategy = ["pipeline", "branches"]
[options.pipeline]
order = "1f1b"
[budget]
rounds_min = 1
rounds_max = 1
measured_s = "60 ms"
hang_timeout = "20 s"
"""


def test_pieces_are_proved_and_their_samples_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    path = tmp_path / "pieces.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    run = Sweep(prepare(SweepRequest(experiment=path, out=tmp_path / "run")), Listener()).run().run
    frame = load(run).set_index("case_id")
    cut = frame[frame["strategy"] != "single"]
    assert set(zip(cut["workload"], cut["strategy"], cut["status"], strict=True)) == {
        ("mlp:small", "pipeline", "ok"),
        ("mlp:small", "branches", "skipped"),
        ("two_branch:small", "pipeline", "skipped"),
        ("two_branch:small", "branches", "ok"),
    }
    for case_id, row in cut[cut["status"] == "ok"].iterrows():
        assert row["global_batch"] == 8
        assert row["samples_per_s"] == pytest.approx(8 / row["step_time_s"])
        assert row["comm_time_s"] > 0
        check_records(run, str(case_id), row["gradient_bytes"])


def check_records(run: RunDir, case_id: str, gradient_bytes: int) -> None:
    proved = read_launch(run.launch(case_id, "proof")).ranks
    for rank in proved:
        proofs = rank.of(Proof)
        assert all(proof.passed for proof in proofs)
        compared = [(proof.compared, proof.dtype) for proof in proofs]
        for dtype in ("float64", "float32"):
            assert ("gradients, same shards", dtype) in compared
            assert ("gradients, whole batch", dtype) in compared
            assert ("update, same gradients", dtype) in compared
            assert ("every parameter has a rank", dtype) in compared
    (directory,) = run.launches(case_id)
    ranks = read_launch(directory).ranks
    held = [rank.of(Held)[0] for rank in ranks]
    assert sum(one.parameter_bytes for one in held) == gradient_bytes
    assert all(0 < one.parameter_bytes == one.gradient_bytes == one.optimizer_bytes for one in held)
    noted = [{(one.step, one.bucket) for one in rank.of(CommRecord) if one.step > 0} for rank in ranks]
    assert noted[0] == noted[1]
    assert len(noted[0]) % len(ranks[0].of(StepRecord)) == 0
