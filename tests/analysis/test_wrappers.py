"""The answer of an experiment that compares frameworks with plain DDP: what each costs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpbench.analysis.finding import Finding
from tests.analysis.test_findings import DDP, MASTER, SINGLE, summary_of
from tests.synthetic import case_of

ACCELERATE, LIGHTNING, DEEPSPEED = (case_of(name, 2) for name in ("accelerate", "lightning", "deepspeed"))
TENSORFLOW = case_of("tf_mirrored", 2)


def answers(path: Path, steps: dict, **settings: float) -> tuple[Finding, ...]:  # type: ignore[type-arg]
    return summary_of(path, {SINGLE: 10, **steps}, **settings).conclusions.answer


def test_what_each_costs_over_ddp_is_the_answer_the_most_first(tmp_path: Path) -> None:
    steps = {DDP: 12, ACCELERATE: 13.2, LIGHTNING: 12.001, DEEPSPEED: 18, TENSORFLOW: 8}
    (found,) = answers(tmp_path, steps, noise=0.004)
    costs = r"DeepSpeed by 50 % \[49, 52\], Accelerate by 10.4 % \[[\d.]+, [\d.]+\]"
    rest = r"no cost shown \(up to [\d.]+ %\): Lightning"
    assert re.fullmatch(rf"2 of 3 wrappers are slower than DDP: {costs}; {rest}\.", found.text), found.text
    assert found.beneath[0].endswith("2 ranks")
    assert found.beneath[1] == "not counted: TF Mirrored, which compute with other kernels"
    assert "not counted: TF Mirrored, which compute with other kernels" in found.tags
    assert not any("may be under" in tag for tag in found.tags)
    assert "TF" not in found.text, "it computes with other kernels"
    assert found.cases[-1] == DDP.case_id


def test_frameworks_that_cannot_be_told_from_ddp_have_a_bound(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, {DDP: 12, ACCELERATE: 12.01, LIGHTNING: 11.99}, noise=0.01)
    assert re.fullmatch(
        r"No cost over DDP at 2 ranks is shown for 2 wrappers \(up to [\d.]+ %\): Accelerate, Lightning\.",
        found.text,
    ), found.text


def test_every_wrapper_is_named_and_set_ups_of_one_are_named_together(tmp_path: Path) -> None:
    apis = [case_of("lightning", 2, options_json=f'{{"api":"{api}"}}') for api in ("trainer", "fabric")]
    same = dict.fromkeys((ACCELERATE, *apis, case_of("hf_trainer", 2), case_of("ray_train", 2)), 12.01)
    (found,) = answers(tmp_path, {DDP: 12, **same, DEEPSPEED: 18}, noise=0.006)
    assert "1 of 6 wrappers is slower than DDP at 2 ranks: DeepSpeed by 5" in found.text
    assert found.text.endswith(
        "): Accelerate, Lightning (api=trainer, api=fabric), HF Trainer, Ray Train."
    ), found.text
    assert len(found.text.split()) <= 30


def test_names_that_do_not_fit_stand_beneath(tmp_path: Path) -> None:
    apis = [case_of("lightning", 2, options_json=f'{{"api":"{api}"}}') for api in ("trainer", "fabric")]
    slow = {case_of("hf_trainer", 2): 16, case_of("ray_train", 2): 17, DEEPSPEED: 18}
    (found,) = answers(
        tmp_path, {DDP: 12, ACCELERATE: 12.01, **dict.fromkeys(apis, 12.01), **slow}, noise=0.006
    )
    assert "; others: undecided (up to " in found.text
    assert "undecided: Accelerate, Lightning (api=trainer, api=fabric)" in found.beneath


@pytest.mark.parametrize(
    "steps",
    [
        {DDP: 12, ACCELERATE: 15},
        {MASTER: 12, ACCELERATE: 13, LIGHTNING: 15},
        {DDP: 12, ACCELERATE: 13, LIGHTNING: 15, MASTER: 20},
    ],
)
def test_one_framework_or_none_beside_ddp_is_no_comparison_of_frameworks(
    steps: dict,
    tmp_path: Path,  # type: ignore[type-arg]
) -> None:
    (found, *_) = answers(tmp_path, steps)
    assert "wrapper" not in found.text
    assert found.text.startswith("2 ranks with ")


def test_many_are_counted(tmp_path: Path) -> None:
    names = ("accelerate", "lightning", "deepspeed", "hf_trainer")
    steps = {case_of(name, 2): 13.0 + number for number, name in enumerate(names)}
    (found,) = answers(tmp_path, {DDP: 12, **steps}, noise=0.002)
    assert found.text.startswith("4 of 4 wrappers are slower than DDP at 2 ranks: the HF Trainer by 33")
    assert len(found.text.split()) <= 30
    assert re.search(r", Accelerate by 8\.\d %\.$", found.text)


def test_a_small_difference_is_said_to_be_possible(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, {DDP: 12, ACCELERATE: 12.3, LIGHTNING: 14}, noise=0.003)
    assert [tag for tag in found.tags if "may be under" in tag] == [
        "the difference of Accelerate may be under 2 %"
    ]


def test_where_no_case_is_as_fast_as_one_rank_the_line_beneath_says_so(tmp_path: Path) -> None:
    slow = {DDP: 40, ACCELERATE: 44, LIGHTNING: 100}
    (found,) = answers(tmp_path / "slow", slow)
    assert found.beneath[0] == (
        "all 3 cases of several ranks are slower than one rank, which is 2 to 5 times as fast, "
        "at least 1.9 times in every case"
    )
    (found,) = answers(tmp_path / "one", {**slow, DDP: 12})
    assert "one rank" not in found.line, "one of them is faster"
