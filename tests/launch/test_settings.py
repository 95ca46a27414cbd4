"""Settings that change how ranks run, on real ranks: each case trains, is proved, and has numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddpbench
from ddpbench.records import Proof, RankStart, RunDir, read_launch

pytestmark = pytest.mark.multiprocess
FAULTY = Path(__file__).parents[1] / "failures/faulty.py"


def sweep(folder: Path, text: str) -> RunDir:
    path = folder / "settings.toml"
    budget = "[budget]\nrounds_min = 1\nrounds_max = 1\nmeasured_s = 0.1\n"
    path.write_text(f"{text}\n{budget}", encoding="utf-8")
    return RunDir(ddpbench.sweep(path, out=folder / "run"))


def test_threads_strong_scaling_float64_and_loader_workers(tmp_path: Path) -> None:
    run = sweep(
        tmp_path,
        """
        [base]
        workload = "mlp"
        scaling = "strong"
        global_batch = 8
        dtype = "float64"
        threads_per_rank = 2
        loader_workers = 1
        [axes]
        strategy = ["ddp", "data_parallel"]
        world_size = [2]
        """,
    )
    frame = ddpbench.load(run.path)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    assert len(frame) == 3  # two strategies, and the base case
    assert set(frame["global_batch"]) == {8}
    assert set(frame[frame["world_size"] == 2]["local_batch"]) == {4}
    ddp = frame[(frame["strategy"] == "ddp") & (frame["world_size"] == 2)].iloc[0]
    parameters = (64 * 256 + 256) + 2 * (256 * 256 + 256) + (256 * 256 + 256)
    assert ddp["gradient_bytes"] == 8 * parameters  # float64
    for rank in read_launch(run.launch(ddp["case_id"], "measure", 0)).ranks:
        start = rank.last(RankStart)
        assert start is not None
        assert start.threads == 2


def test_random_and_batch_normalised_models_are_not_called_wrong(tmp_path: Path) -> None:
    run = sweep(
        tmp_path,
        f"""
        [base]
        world_size = 2
        [axes]
        workload = ["{FAULTY}:Dropout", "{FAULTY}:BatchNorm"]
        strategy = ["ddp", "data_parallel"]
        """,
    )
    frame = ddpbench.load(run.path)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    notes: dict[tuple[str, str], set[str]] = {}
    for row in frame[frame["world_size"] == 2].itertuples():
        proofs = read_launch(run.launch(str(row.case_id), "proof")).ranks[0].of(Proof)
        name = str(row.workload).rpartition(":")[2]
        notes[name, str(row.strategy)] = {proof.compared for proof in proofs if proof.note}
    assert notes == {
        ("Dropout", "ddp"): {"gradients, whole batch"},
        ("Dropout", "data_parallel"): {"gradients, same shards", "gradients, whole batch"},
        ("BatchNorm", "ddp"): {"gradients, whole batch"},
        ("BatchNorm", "data_parallel"): {"gradients, whole batch"},
    }
