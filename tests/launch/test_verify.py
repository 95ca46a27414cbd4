"""Which cases `ddpbench verify` proves."""

from __future__ import annotations

from collections import Counter

from ddpbench.launch.verify import verification_cases
from ddpbench.strategies import load_strategy


def test_every_algorithm_and_schedule_is_proved_and_at_one_rank_one_of_them() -> None:
    cases = [entry.case for entry in verification_cases(["ddp", "master"], ["mlp:small"], [1, 2], "gloo")]
    counted = Counter((case.strategy, case.world_size) for case in cases)
    variants = len(load_strategy("ddp").variants)
    assert variants >= 8
    expected = {("ddp", 1): 1 + variants, ("ddp", 2): 8 * 2 + variants, ("master", 1): 1, ("master", 2): 1}
    assert counted == expected


def test_a_variant_has_its_options_and_the_strategys_own_algorithm() -> None:
    entries = verification_cases(["ddp"], ["mlp:small"], [2], "gloo")
    cases = [entry.case for entry in entries if entry.case.options["compression"] == "powersgd"]
    assert [case.options["matrix_approximation_rank"] for case in cases] == [1, 4]
    assert {(case.algorithm, case.schedule) for case in cases} == {("all_reduce", "overlapped")}
    assert all(entry.skip_reason is None for entry in entries)


def test_what_is_named_is_proved_alone() -> None:
    cases = verification_cases(
        ["ddp"], ["mlp:small"], [1, 2], "gloo", algorithms=["ring"], schedules=["after_backward"]
    )
    assert [entry.case.label for entry in cases] == [
        "ddp · ring · after backward · 1 rank · default buckets",
        "ddp · ring · after backward · 2 ranks · default buckets",
    ]
