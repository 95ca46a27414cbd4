"""Users' steps that fsdp's shards change without an error: skipped with the reason, and proved elsewhere."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.worker.test_updates import each_ended

LOST = {
    "PenalisesGradients": "as the gradient of a gradient does",
    "FollowsInForward": "its forward writes into follows.weight, follows.bias, but FSDP frees its gathered copy",
    "ScalesInForward": "its forward writes into layer.weight, but FSDP frees its gathered copy",
    "HooksInStep": "without their hooks, so the hooks of 0.weight, 0.bias and 2 more are not called",
    "HooksForOneStep": "without their hooks, so the hooks of 0.weight, 0.bias and 2 more are not called",
    "FollowsInStep": "its step computes with parameters outside a forward",
    "AddsNoise": "its step computes with parameters outside a forward",
}
KEPT = ["LooksOn", "ClipsWeights"]


@pytest.mark.ranks
def test_what_a_step_loses_in_shards_is_named_and_its_case_skipped() -> None:
    for found in run_ranks(each_ended, 2, [*LOST, *KEPT], ["fsdp"]):
        for name, said in LOST.items():
            status, reason = found.pop((name, "fsdp"))
            assert (status, said in reason) == ("skipped", True), (name, status, reason)
            assert reason.startswith("fsdp cannot train this model: ")
            assert ("wrap" in reason) == (name == "PenalisesGradients"), reason
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
def test_the_other_way_to_shard_trains_a_penalty_on_gradients() -> None:
    for found in run_ranks(each_ended, 2, ["PenalisesGradients"], ["fsdp wrap=whole"]):
        assert found == {("PenalisesGradients", "fsdp wrap=whole"): ("ok", "")}


@pytest.mark.ranks
def test_the_same_steps_are_proved_where_each_rank_has_the_whole_model() -> None:
    for found in run_ranks(each_ended, 2, [*LOST, *KEPT], ["ddp", "zero1", "master"]):
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}
