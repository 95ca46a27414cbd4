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
    start = "2 of 3 framework set-ups are slower than DDP at 2 ranks: DeepSpeed by 50 %, Accelerate by 10 %; others: "
    assert found.text.startswith(start), found.text
    assert any(
        re.match(r"DeepSpeed by [\d.]+ % \[[\d., ]+\], Accelerate by [\d.]+ % \[", tag) for tag in found.tags
    )
    assert re.search(r"; others: no cost shown \(up to [\d.]+ % possible\)\.$", found.text)
    assert "not counted: TF Mirrored, which compute with other kernels" in found.tags
    assert not any("may be under" in tag for tag in found.tags)
    assert "TF" not in found.text, "it computes with other kernels"
    assert found.cases[-1] == DDP.case_id


def test_frameworks_that_cannot_be_told_from_ddp_have_a_bound(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, {DDP: 12, ACCELERATE: 12.01, LIGHTNING: 11.99}, noise=0.01)
    assert found.text.startswith(
        "No framework set-up (of 2) is shown to be slower than DDP at 2 ranks; a step takes "
    )
    assert found.text.endswith(" longer at most.")


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
    assert "framework" not in found.text
    assert found.text.startswith("2 ranks with ")


def test_many_are_counted(tmp_path: Path) -> None:
    names = ("accelerate", "lightning", "deepspeed", "hf_trainer")
    steps = {case_of(name, 2): 13.0 + number for number, name in enumerate(names)}
    (found,) = answers(tmp_path, {DDP: 12, **steps}, noise=0.002)
    assert found.text.startswith(
        "4 of 4 framework set-ups are slower than DDP at 2 ranks: the HF Trainer by 3"
    )
    assert len(found.text.split()) <= 30
    assert ", Accelerate by 9 %." in found.text


def test_a_small_difference_is_said_to_be_possible(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, {DDP: 12, ACCELERATE: 12.3, LIGHTNING: 14}, noise=0.003)
    assert [tag for tag in found.tags if "may be under" in tag] == [
        "the difference of Accelerate may be under 2 %"
    ]


def test_where_no_case_is_as_fast_as_one_rank_the_line_beneath_says_so(tmp_path: Path) -> None:
    slow = {DDP: 40, ACCELERATE: 44, LIGHTNING: 100}
    (found,) = answers(tmp_path / "slow", slow)
    assert found.beneath[0] == (
        "all 3 cases of several ranks are slower than one rank, which is at least 1.9 times as fast"
    )
    (found,) = answers(tmp_path / "one", {**slow, DDP: 12})
    assert "one rank" not in found.line, "one of them is faster"
