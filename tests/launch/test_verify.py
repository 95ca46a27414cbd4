"""The cases that `ddpbench verify` proves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ddpbench.errors import ExperimentError
from ddpbench.launch.verify import owned_overrides, verification_cases
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


def test_settings_reach_every_case_and_options_their_owner_alone() -> None:
    overrides = [f"{key}=2" for key in ("base.local_batch", "options.post_local_sgd.period")]
    overrides.append("options.ddp.broadcast_buffers=false")
    entries = verification_cases(["ddp", "post_local_sgd"], ["mlp:small"], [2], "gloo", overrides=overrides)
    cases = [entry.case for entry in entries]
    assert {case.local_batch for case in cases} == {2}
    assert {case.options["broadcast_buffers"] for case in cases if case.strategy == "ddp"} == {False}
    assert {case.options["period"] for case in cases if case.strategy == "post_local_sgd"} == {2}
    assert sum(case.strategy == "ddp" for case in cases) == 8 * 2 + len(load_strategy("ddp").variants)
    same = verification_cases(["ddp"], ["mlp:small"], [2], "gloo", overrides=["options.ddp.accumulate=2"])
    assert len({entry.case.case_id for entry in same}) == len(same), "a variant that is now the first case"


def test_what_is_set_for_nothing_that_is_proved_is_refused() -> None:
    owned_overrides(['options."my.train.py".width=3'], ["ddp"], ["my.train.py:Measured"])
    with pytest.raises(ExperimentError, match="fsdp is not among the cases to prove; known: ddp, mlp"):
        owned_overrides(["options.fsdp.wrap=false"], ["ddp"], ["mlp"])
    for overrides, said in (
        (["base.local_batches=2"], "base.local_batches: unknown key"),
        (["fabric.nodes=2", 'fabric.bandwidth="1 Gbit/s"'], "verify uses this machine and its own links"),
    ):
        with pytest.raises(ExperimentError, match=said):
            verification_cases(["ddp"], ["mlp:small"], [2], "gloo", overrides=overrides)


def test_problems_name_the_flags() -> None:
    with pytest.raises(ExperimentError) as caught:
        verification_cases(
            ["post_local_sgd"],
            ["mlp:small"],
            [2],
            "gloo",
            algorithms=["all_reduce"],
            schedules=["overlapped"],
        )
    assert str(caught.value).splitlines() == [
        "verify: 2 problems",
        "  --algorithm: post_local_sgd leaves no choice of it; use --strategy ddp",
        "  --schedule: post_local_sgd leaves no choice of it; use --strategy ddp",
    ]


def test_a_bare_option_goes_to_the_strategy_that_alone_has_it() -> None:
    assert owned_overrides(
        ["accumulate=2", "local_batch = 2", "block_size=8"], ["ddp", "fsdp"], ["gpt:nano"]
    ) == [
        "options.ddp.accumulate=2",
        "local_batch= 2",
        "options.gpt.block_size=8",
    ]
    with pytest.raises(
        ExperimentError, match=r"may be options\.ddp\.accumulate or options\.lightning\.accumulate"
    ):
        owned_overrides(["accumulate=2"], ["ddp", "lightning"], ["gpt:nano"])


def test_a_file_that_cannot_be_imported_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("import nosuchmodule\n\n\nclass A: ...\n\n\nclass B: ...\n", encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"1 problem\n.* cannot be imported") as told:
        verification_cases([f"{file}:A", f"{file}:B"], ["mlp"], [2], "gloo")
    assert len(told.value.problems) == 1
