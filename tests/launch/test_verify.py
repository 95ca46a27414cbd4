"""Which cases `ddpbench verify` proves."""

from __future__ import annotations

from collections import Counter

from ddpbench.launch.verify import verification_cases


def test_every_algorithm_and_schedule_is_proved_and_at_one_rank_one_of_them() -> None:
    cases = [entry.case for entry in verification_cases(["ddp", "master"], ["mlp:small"], [1, 2], "gloo")]
    counted = Counter((case.strategy, case.world_size) for case in cases)
    assert counted == {("ddp", 1): 1, ("ddp", 2): 8 * 2, ("master", 1): 1, ("master", 2): 1}


def test_what_is_named_is_proved_alone() -> None:
    cases = verification_cases(
        ["ddp"], ["mlp:small"], [1, 2], "gloo", algorithms=["ring"], schedules=["after_backward"]
    )
    assert [entry.case.label for entry in cases] == [
        "ddp · ring · after backward · 1 rank · default buckets",
        "ddp · ring · after backward · 2 ranks · default buckets",
    ]
