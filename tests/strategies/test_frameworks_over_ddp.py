"""Accelerate and Lightning on real ranks: they train as DDP does, bit for bit, and planted faults are noticed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import load, summarize
from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import CommRecord, StepRecord, read_launch
from ddpbench.report import write_report
from tests.processes import nothing_left_behind
from tests.ranks import run_ranks
from tests.strategies.framework_ranks import autocasts, left_behind, proofs
from tests.strategies.training import STEPS, Run, bit_equal, three_runs

__all__ = ["nothing_left_behind"]

pytestmark = [pytest.mark.framework("accelerate", "lightning"), pytest.mark.multiprocess]

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "accelerate": ("accelerate", {}),
    "fabric": ("lightning", {"api": "fabric"}),
    "trainer": ("lightning", {"api": "trainer"}),
}
CAP_MB = 600 / 2**20
OWN = Path(__file__).parent / "own_updates.py"
every_way = pytest.mark.parametrize("way", WAYS)


@cache
def runs(way: str, world_size: int, accumulate: int) -> list[tuple[Run, Run, Run]]:
    strategy, options = WAYS.get(way, (way, {}))
    return run_ranks(
        three_runs, world_size, strategy, world_size, {**options, "accumulate": accumulate}, CAP_MB
    )


@every_way
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2])
def test_steps_are_those_of_ddp_bit_for_bit(way: str, world_size: int, accumulate: int) -> None:
    for own, ddp in zip(runs(way, world_size, accumulate), runs("ddp", world_size, accumulate), strict=True):
        # Plain; instrumented; plain again on the module that the instrumented run has left.
        for mine, its in zip(own, ddp, strict=True):
            assert bit_equal(mine.parameters, its.parameters)
            assert mine.losses == pytest.approx(its.losses, rel=1e-12)
            for step in range(STEPS):
                assert bit_equal(mine.gradients[step], its.gradients[step])
            # With a single process Accelerate lets DDP aggregate in every part, so that buckets are final sooner.
            sooner = int((way, world_size, accumulate) == ("accelerate", 1, 2))
            assert mine.buckets[sooner:] == its.buckets[sooner:]
            assert mine.ready[sooner:] == its.ready[sooner:]
        assert own[1].reducers_left == 0


@every_way
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_instrumented_step_notes_its_parts(way: str, accumulate: int) -> None:
    """Drop the Trainer's optimizer span too: unlike the sweep, `train` ends a step before the update."""
    for _, noted, _ in runs(way, 2, accumulate):
        steps = [record for record in noted.records if isinstance(record, StepRecord)]
        assert len(steps) == STEPS
        cleared = ["optimizer"] if way == "trainer" else []
        for step in steps[2:]:
            # Before each part the Trainer broadcasts whether to stop; `apply`, where it does so last, comes after this.
            stop_broadcast = ["synchronize"] if way == "trainer" else []
            first = [*["forward", *cleared, "backward"], *stop_broadcast] if accumulate > 1 else []
            last = ["forward", *(cleared if accumulate == 1 else []), "backward", "synchronize"]
            after = [*cleared, *stop_broadcast]
            assert [name for name, _, _ in step.spans] == [*first, *last, *after]
            sent = [r for r in noted.records if isinstance(r, CommRecord) and r.step == step.step]
            reduced = [record for record in sent if record.op == "all_reduce"]
            assert tuple(record.bytes for record in reduced) == noted.buckets[step.step]
            assert len({record.bucket for record in sent}) == len(sent)
            broadcasts = [record for record in sent if record.op == "broadcast"]
            assert [record.bytes for record in broadcasts] == ([8] * accumulate if way == "trainer" else [])


@every_way
@pytest.mark.parametrize("workload", ["mlp:small", "cnn:small", "replay:gpt-nano-cpu"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_each_is_proved(way: str, workload: str, world_size: int) -> None:
    for found in run_ranks(proofs, world_size, *WAYS[way], workload, "", "full"):
        assert all(passed for passed, _ in found.values()), found
        assert "gradients, same shards" in found
        if not workload.startswith("replay"):
            assert {"update, same gradients", "parameters, same samples"} < set(found)


@every_way
def test_a_workloads_own_update_is_proved(way: str) -> None:
    for found in run_ranks(proofs, 2, *WAYS[way], f"{OWN}:Clipped", "", "full"):
        assert all(passed for passed, _ in found.values()), found
        assert "parameters, same samples" in found


@every_way
def test_a_model_that_draws_random_numbers_draws_the_same(way: str) -> None:
    for found in run_ranks(proofs, 2, *WAYS[way], f"{OWN}:Dropping", "", "full"):
        assert found["gradients, same shards"][0], found


@every_way
def test_bf16_is_proved_and_is_the_frameworks_own(way: str) -> None:
    (found,) = run_ranks(autocasts, 1, *WAYS[way])
    # The harness enters no autocast: the wrapper of a model's forward is removed, and this loss enters none.
    assert found == {"bf16": ["torch.bfloat16"], "full": []}
    for proved in run_ranks(proofs, 2, *WAYS[way], "mlp:small", "", "bf16"):
        assert proved["gradients, same shards"] == (True, ["float64", "float32, bf16 autocast"])


@pytest.mark.parametrize(
    ("way", "wrong", "workload", "broken"),
    [
        ("trainer", "clips", "mlp:small", {"update, same gradients", "parameters, same samples"}),
        ("trainer", "schedules", "mlp:small", {"parameters, same samples"}),
        ("trainer", "drops a sample", "mlp:small", {"gradients, same shards", "gradients, whole batch"}),
        ("trainer", "hooks stay", f"{OWN}:Clipped", {"update, same gradients", "parameters, same samples"}),
        ("accelerate", "shards again", "mlp:small", {"gradients, same shards", "gradients, whole batch"}),
        ("accelerate", "is a batch behind", "mlp:small", {"parameters, same samples"}),
        (
            *("accelerate", "does not wrap", "mlp:small"),
            {"gradients, same shards", "gradients, whole batch", "final replicas"},
        ),
    ],
)
def test_what_a_framework_does_behind_ones_back_is_caught(
    way: str, wrong: str, workload: str, broken: set[str]
) -> None:
    for found in run_ranks(proofs, 2, *WAYS[way], workload, wrong, "full"):
        failed = {compared for compared, (passed, _) in found.items() if not passed}
        assert broken <= failed, found
        assert failed <= broken | {"parameters, same samples"}, found


@every_way
def test_the_process_is_left_as_it_was_and_nothing_is_written(way: str, tmp_path: Path) -> None:
    for differs in run_ranks(left_behind, 2, *WAYS[way], str(tmp_path), ""):
        assert differs == {}


@pytest.mark.parametrize(
    ("way", "changed"),
    [
        ("accelerate", {"random numbers, made", "environment, training"}),
        ("fabric", {"random numbers, made", "environment, training"}),
        ("trainer", {"random numbers, step 0", "environment, training", "handlers, training"}),
    ],
)
def test_frameworks_would_change_the_process(way: str, changed: set[str], tmp_path: Path) -> None:
    for differs in run_ranks(left_behind, 2, *WAYS[way], str(tmp_path), "nothing is put back"):
        assert changed <= set(differs)


EXPERIMENT = """
question = "What do frameworks cost over bare DDP?"
[base]
workload = "mlp:small"
local_batch = 4
world_size = 2
[axes]
strategy = ["ddp", "accelerate", "lightning"]
"options.lightning.api" = ["trainer", "fabric"]
[budget]
rounds_min = 1
rounds_max = 1
measured_s = "60 ms"
hang_timeout = "60 s"
"""


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_sweep_records_spans_and_transfers_up_to_its_report(tmp_path: Path) -> None:
    path = tmp_path / "frameworks.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    run = Sweep(prepare(SweepRequest(experiment=path, out=tmp_path / "run")), Listener()).run().run
    frame = load(run)
    assert set(frame["status"]) == {"ok"}, frame[["strategy", "error"]]
    text = write_report(summarize(run), run).read_text(encoding="utf-8")
    assert "Accelerate" in text
    assert "Lightning" in text
    over_ddp = frame[frame["strategy"].isin(["ddp", "accelerate", "lightning"])]
    assert len(over_ddp) == 4
    # They train alike: the same parameters, and the same gradients in the same buckets.
    assert over_ddp["gradient_bytes"].nunique() == over_ddp["actual_bucket_bytes"].nunique() == 1
    for _, row in over_ddp.iterrows():
        for launch in run.launches(row["case_id"]):
            for rank in read_launch(launch).ranks:
                steps, transfers = rank.of(StepRecord), rank.of(CommRecord)
                assert steps
                for step in steps:
                    names = {name for name, _, _ in step.spans}
                    assert {"data", "forward", "backward", "synchronize", "optimizer"} <= names, row[
                        "strategy"
                    ]
                    sent = [
                        each.bytes for each in transfers if (each.step, each.op) == (step.step, "all_reduce")
                    ]
                    assert sum(sent) == row["gradient_bytes"]
