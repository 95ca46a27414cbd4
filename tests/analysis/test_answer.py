"""The answer at the top of a page, for known step times: its text, and statements that it must not make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpbench.analysis import Finding, RunSummary, summarize
from ddpbench.analysis.findings.answer import answer_of
from ddpbench.analysis.sentences import Sentence
from ddpbench.records import RunDir
from ddpbench.spec import Budget, Case
from tests.analysis.test_findings import DDP, MASTER, SINGLE, summary_of
from tests.frames import framed
from tests.synthetic import (
    MS,
    Outcome,
    RankLaunch,
    case_of,
    matrix,
    processes_of,
    write_launch,
    write_plan,
    write_proof,
    write_run,
    write_sessions,
)


def answer(summary: RunSummary) -> str:
    (said,) = summary.conclusions.answer
    assert said.kind == "answer"
    return said.line


def test_the_best_is_named_and_how_far_behind_the_other_is(tmp_path: Path) -> None:
    said = answer(summary_of(tmp_path, {SINGLE: 10, DDP: 12, MASTER: 15}))
    assert said.startswith("2 ranks with DDP train 1.6")
    assert " times as fast as one rank; with master a step takes 25.0 % longer (6 launches each; " in said
    assert said.endswith("; a slow-down that affects up to 40 % of launches may have been missed).")
    said = answer(summary_of(tmp_path / "far", {SINGLE: 10, DDP: 12, MASTER: 36}))
    assert "; with master a step takes 3.00 times as long, slower than one rank (" in said


def test_the_best_need_not_be_the_reference(tmp_path: Path) -> None:
    assert answer(summary_of(tmp_path, {SINGLE: 10, DDP: 15, MASTER: 12})).startswith(
        "2 ranks with master train 1.6"
    )


def test_of_cases_that_cannot_be_told_apart_the_reference_is_used_and_no_other_is_called_slower(
    tmp_path: Path,
) -> None:
    """Whichever case happens to be the fastest: a choice by the mean would be luck."""
    said = answer(summary_of(tmp_path, {SINGLE: 10, DDP: 12, MASTER: 11.9}, noise=0.08))
    assert said.startswith("2 ranks with DDP train 1.9")
    assert " times as fast as one rank; no strategy is shown to be faster: DDP is within " in said
    assert " rounds, of which 6 were made; " in said
    assert "the step of DDP is" not in said, "the text has the bound"
    assert "master takes" not in said


def test_a_reference_that_is_shown_to_be_slower_is_not_used(tmp_path: Path) -> None:
    cap = case_of("ddp", 2, bucket_cap_mb=25.0)
    said = answer(summary_of(tmp_path, {SINGLE: 10, DDP: 20, MASTER: 12, cap: 12.001}, noise=0.004))
    assert said.startswith("2 ranks with master train 1.6")
    assert "; equivalent within 2 % to DDP (25 MiB buckets) (" in said
    assert "default buckets" not in said


def test_caps_of_one_strategy_are_told_apart_by_their_caps(tmp_path: Path) -> None:
    caps = {case_of("ddp", 2, bucket_cap_mb=cap): step for cap, step in ((1.0, 15.0), (25.0, 11.0))}
    said = answer(summary_of(tmp_path, {SINGLE: 10, DDP: 12, **caps}))
    assert said.startswith("2 ranks with DDP (25 MiB buckets) train 1.8")
    # By the means it is 9.0 % for the closer one; the intervals' bound is true of both.
    assert "; steps of the other 2 take at least 8.6 % longer" in said


def test_layouts_of_the_best_strategy_that_cannot_be_told_apart_do_not_hide_that_it_is_best(
    tmp_path: Path,
) -> None:
    def on(strategy: str, nodes: int) -> Case:
        return case_of(strategy, 4, fabric="1 Gbit/s", nodes=nodes, ranks_per_node=4 // nodes)

    one, two, master = on("ddp", 1), on("ddp", 2), on("master", 2)
    said = answer(summary_of(tmp_path, {SINGLE: 10, one: 12, two: 12.001, master: 20}, noise=0.004))
    assert said.startswith("4 ranks with ring (DDP) train 3.3")
    assert "; equivalent within 2 %: 1 node x 4 ranks and 2 x 2 (" in said
    steps = {SINGLE: 10, one: 12, two: 12.001, master: 20}
    said = summary_of(tmp_path / "loud", steps, noise=0.03).conclusions.answer[0].text
    assert re.search(r"; no difference between 1 node x 4 ranks and 2 x 2 is shown", said), said


def test_a_tie_is_called_one_with_its_bound(tmp_path: Path) -> None:
    """The reference is slower; of the two others neither is shown to be faster."""
    cap = case_of("ddp", 2, bucket_cap_mb=25.0)
    steps = {SINGLE: 10, DDP: 24, MASTER: 12, cap: 12.05}
    found = summary_of(tmp_path, steps, noise=0.03).conclusions.answer[0]
    which = r"(master|DDP \(25 MiB buckets\))"
    tie = re.search(
        rf"no difference from {which} is shown: within (\d+\.\d|\d+) % of the fastest other\.$", found.text
    )
    assert tie is not None, found.text
    assert 2 < float(tie[2]) < 25
    assert "told apart" not in found.text
    assert "may be as fast or faster" not in found.line


def test_where_more_ranks_are_slower_the_answer_is_one(tmp_path: Path) -> None:
    said = answer(summary_of(tmp_path, {SINGLE: 10, DDP: 40, MASTER: 60}))
    assert said.startswith("2 ranks with DDP train 0.50")
    assert " times as fast as one rank: stay on one (" in said


def test_another_path_of_training_is_never_what_to_use(tmp_path: Path) -> None:
    local = case_of("post_local_sgd", 2, algorithm="all_reduce", schedule="after_backward")
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP, MASTER, local], Budget(rounds_min=1, rounds_max=6))
    write_proof(run, local, compared="parameters, averaged")
    for number in range(6):
        for case, step in ((SINGLE, 10), (DDP, 12), (MASTER, 15), (local, 11)):
            blocks = [[int(step * MS * (1 + number / 1000))] * 10]
            write_launch(run, case, number, [RankLaunch(blocks=blocks)] * processes_of(case))
    write_sessions(run)
    said = answer(summarize(run))
    assert said.startswith("2 ranks with DDP train 1.6")
    assert "not ranked: local SGD (another path of training)" in said


INDEPENDENT = case_of("independent", 2)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ({SINGLE: 10, DDP: 6.4, MASTER: 15}, "its speed-up's interval is 3."),
        (
            {SINGLE: 10, MASTER: 25, DDP: 12, INDEPENDENT: 22},
            "its step over that of independent ranks is 0.5",
        ),
    ],
    ids=["3.1 times at 2 ranks", "82 % faster than independent ranks"],
)
def test_a_number_that_cannot_be_right_is_no_answer_and_no_finding(
    tmp_path: Path, steps: dict[Case, float], why: str
) -> None:
    found = summary_of(tmp_path, steps)
    said = answer(found)
    assert said.startswith("No answer: the numbers of DDP at 2 ranks cannot be right: ")
    assert why in said
    assert said.endswith("repeat on a quiet machine).")
    lines = [one.line for one in found.conclusions.findings]
    assert [line for line in lines if "DDP" in line] == []
    assert lines, "those on other cases stay"
    assert set(framed(found.steps.comparisons)["verdict"]) == {"cannot tell"}


def test_a_panel_with_a_wrong_number_is_not_judged_and_the_others_are(tmp_path: Path) -> None:
    other = {one: case_of(one.strategy, one.world_size, workload="mlp") for one in (SINGLE, DDP, MASTER)}
    steps = {SINGLE: 10, DDP: 6, MASTER: 15, other[SINGLE]: 10, other[DDP]: 12, other[MASTER]: 15}
    said = answer(summary_of(tmp_path, steps))
    assert said.startswith("2 ranks with DDP train 1.67 times as fast as one rank on 1 of 2 workloads")
    assert "not judged: gpt:nano" in said


def test_under_strong_scaling_caches_may_explain_a_little_more_than_linear(tmp_path: Path) -> None:
    strong = {"scaling": "strong", "global_batch": 16}
    one = case_of("single", 1, local_batch=16, **strong)
    ddp, master = (case_of(name, 2, local_batch=8, **strong) for name in ("ddp", "master"))
    said = answer(summary_of(tmp_path / "a", {one: 10, ddp: 4.5, master: 8}))
    assert said.startswith("2 ranks with DDP train 2.2")
    said = answer(summary_of(tmp_path / "b", {one: 10, ddp: 3, master: 8}))
    assert said.startswith("No answer: the numbers of DDP at 2 ranks cannot be right: ")


def test_oversubscribed_cases_and_too_few_rounds_answer_nothing(tmp_path: Path) -> None:
    crowd, other = case_of("ddp", 8), case_of("master", 8)
    found = summary_of(tmp_path, {SINGLE: 10, crowd: 80, other: 120}, oversubscribed=(crowd, other))
    assert answer(found) == "No answer: no case that aggregates had separate cores."
    found = summary_of(tmp_path / "few", {SINGLE: 10, DDP: 12, MASTER: 25}, rounds=3)
    assert not any("ranks with" in one.text for one in found.conclusions.answer)
    found = summary_of(tmp_path / "one", {SINGLE: 10})
    assert answer(found) == "No answer: no case of several ranks was measured."


def test_fewer_ranks_that_train_more_are_used(tmp_path: Path) -> None:
    """A number of ranks is not called useless, or the best, because of another one."""
    four, other = case_of("ddp", 4), case_of("master", 4)
    said = answer(summary_of(tmp_path, {SINGLE: 10, DDP: 11.1, MASTER: 11.5, four: 44, other: 50}))
    assert said.startswith("2 ranks with DDP train 1.8")
    assert "4 ranks are slower" in said
    said = answer(summary_of(tmp_path / "pays", {SINGLE: 10, DDP: 11.1, MASTER: 11.5, four: 13, other: 20}))
    assert said.startswith("4 ranks with DDP train 3.0")
    assert "slower" not in said


def test_a_gain_that_is_not_shown_is_said(tmp_path: Path) -> None:
    said = answer(summary_of(tmp_path, {SINGLE: 10, DDP: 21.5, MASTER: 43}, noise=0.06))
    assert "not shown to be faster than one rank" in said


def test_what_is_slower_by_less_than_the_margin_is_not_called_alike(tmp_path: Path) -> None:
    cap = case_of("ddp", 2, bucket_cap_mb=25.0)
    said = answer(summary_of(tmp_path, {SINGLE: 10, DDP: 12.12, MASTER: 12, cap: 12.0}, noise=0.0005))
    assert "default buckets" not in said.split(";")[0]
    assert "default buckets) cannot be told" not in said


def test_no_bound_is_below_zero(tmp_path: Path) -> None:
    for number in range(6):
        said = answer(
            summary_of(tmp_path / str(number), {SINGLE: 10, DDP: 12, MASTER: 12.3 + number / 50}, noise=0.02)
        )
        assert "at most -" not in said
        assert "at most 0 %" not in said


def test_links_with_different_answers_are_named_and_labelled(tmp_path: Path) -> None:
    slow = {"fabric": "1 Gbit/s", "dilation": 10.0}
    fast = {"fabric": "10 Gbit/s", "dilation": 10.0}
    steps: dict[Case, float] = {
        case_of("ddp", 2, **slow): 12,
        case_of("master", 2, **slow): 20,
        case_of("ddp", 2, **fast): 12,
        case_of("master", 2, **fast): 9,
    }
    (said, asked) = summary_of(tmp_path / "apart", {SINGLE: 10, **steps}).conclusions.answer
    assert (
        said.text
        == "It depends: at 2 ranks use ring (DDP) for emulated 1 Gbit/s link; master for emulated 10 Gbit/s link."
    )
    assert "dilated x10" in said.tags
    assert asked.kind == "links"
    steps[case_of("master", 2, **fast)] = 30
    said = summary_of(tmp_path / "alike", {SINGLE: 10, **steps}).conclusions.answer[0]
    assert said.text.startswith("2 ranks train fastest with ring (DDP) on both links")
    assert said.text.endswith("the others are slower.")
    assert {"dilated x10", "emulated links"} <= set(said.tags)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            12,
            "2 ranks with {} train 1.67 times as fast as one rank in torch on both workloads; the others are slower.",
        ),
        (
            25,
            "2 ranks train 0.799 to 0.800 times as fast as one rank in torch on both workloads: stay on one.",
        ),
    ],
)
@pytest.mark.parametrize("name", ["ddp", "tf_mirrored"])
def test_a_gain_over_several_panels_is_over_a_rank_in_torch(
    tmp_path: Path, name: str, step: float, message: str
) -> None:
    own: dict[Case, float] = {case_of(name, 2): step, case_of(name, 2, **MLP): step}
    others: dict[Case, float] = {MASTER: 30, OTHER: 30}
    found = summary_of(tmp_path, {SINGLE: 10, BASE: 10, **own, **others}).conclusions.answer[0].text
    if name == "ddp":
        assert found == message.format("DDP").replace("rank in torch", "rank")
    else:
        assert found == message.format("TF Mirrored")


def test_panels_of_other_sizes_or_without_a_choice_are_not_spoken_for(tmp_path: Path) -> None:
    mlp = {"workload": "mlp:small"}
    base, two, other = case_of("single", 1, **mlp), case_of("ddp", 2, **mlp), case_of("master", 2, **mlp)
    four, rival = case_of("ddp", 4), case_of("master", 4)
    steps: dict[Case, float] = {SINGLE: 10, four: 13, rival: 20, base: 10, two: 12, other: 15}
    said = summary_of(tmp_path / "sizes", steps).conclusions.answer[0].text
    assert (
        said == "2 of 2 workloads are decided: use DDP at 4 ranks for gpt:nano; DDP at 2 ranks for mlp:small."
    )
    steps = {SINGLE: 10, DDP: 12, MASTER: 15, base: 10, two: 12}
    said = summary_of(tmp_path / "alone", steps).conclusions.answer[0].text
    assert (
        said
        == "2 ranks with DDP train 1.67 times as fast as one rank on both workloads; the others are slower."
    )
    steps = {SINGLE: 10, DDP: 15, MASTER: 12, base: 10, two: 12}
    said = summary_of(tmp_path / "apart", steps).conclusions.answer[0].text
    assert said == "1 of 2 workloads is decided: at 2 ranks use master for gpt:nano.", (
        "nothing is compared for mlp"
    )
    steps = {SINGLE: 10, DDP: 15, MASTER: 12, base: 10, two: 12, other: 15}
    said = summary_of(tmp_path / "both", steps).conclusions.answer[0].text
    assert said == "It depends: at 2 ranks use master for gpt:nano; DDP for mlp:small."
    run = RunDir(tmp_path / "failed")
    write_plan(run, [SINGLE, DDP, MASTER], Budget(rounds_min=1, rounds_max=6))
    write_proof(run, DDP, Outcome(status="diverged", error="gradients differ"))
    for number in range(6):
        for case in (SINGLE, MASTER):
            write_launch(run, case, number, [RankLaunch()] * processes_of(case))
    write_sessions(run)
    assert "not ranked: DDP (diverged)" in "; ".join(summarize(run).conclusions.answer[0].tags)


def test_a_panel_that_is_undecided_does_not_make_the_answer_depend(tmp_path: Path) -> None:
    """For mlp, master may be as fast as DDP, so that master may be the best for both."""
    steps: dict[Case, float] = {SINGLE: 10, DDP: 18, MASTER: 12, BASE: 10, TWO: 12, OTHER: 12.01}
    found = summary_of(tmp_path, steps, noise=0.02).conclusions.answer[0]
    assert found.text == "1 of 2 workloads is decided: at 2 ranks use master for gpt:nano."
    assert "not decided for mlp:small" in found.tags


MLP = {"workload": "mlp:small"}
BASE, TWO, OTHER = case_of("single", 1, **MLP), case_of("ddp", 2, **MLP), case_of("master", 2, **MLP)


def some_failed(path: Path, step_ms: dict[Case, float], failed: tuple[Case, ...]) -> RunSummary:
    """Write a run whose last cases failed their proof, and were never launched."""
    run = RunDir(path)
    write_plan(run, [*step_ms, *failed], Budget(rounds_min=1, rounds_max=6))
    for case in failed:
        write_proof(run, case, Outcome(status="failed", error="no"))
    for number in range(6):
        for case, step in step_ms.items():
            blocks = [[int(step * MS * (1 + number / 1000))] * 10]
            write_launch(run, case, number, [RankLaunch(blocks=blocks)] * processes_of(case))
    write_sessions(run)
    return summarize(run)


def test_a_panel_that_failed_is_named_and_so_is_the_one_that_did_not(tmp_path: Path) -> None:
    found = some_failed(
        tmp_path / "whole", {SINGLE: 10, DDP: 11, MASTER: 12, BASE: 10}, (TWO, OTHER)
    ).conclusions.answer[0]
    assert "on 1 of 2 workloads" in found.text
    assert "not judged: mlp:small" in found.tags


def test_no_gain_is_claimed_where_the_base_case_failed(tmp_path: Path) -> None:
    steps: dict[Case, float] = {SINGLE: 10, DDP: 11, MASTER: 12, TWO: 30, OTHER: 33}
    found = some_failed(tmp_path / "base", steps, (BASE,)).conclusions.answer[0]
    assert "on both workloads; the others are slower" in found.text
    assert "1.8" not in found.text
    assert "no base case: mlp:small" in found.tags
    alone = some_failed(tmp_path / "alone", {SINGLE: 10, DDP: 11, TWO: 30}, (BASE,)).conclusions.answer[0]
    assert "on 1 of 2 workloads" in alone.text


def test_what_holds_for_one_panel_is_said_of_it_alone(tmp_path: Path) -> None:
    four, rival = case_of("ddp", 4), case_of("master", 4)
    slow, late = case_of("ddp", 4, **MLP), case_of("master", 4, **MLP)
    steps: dict[Case, float] = {SINGLE: 10, DDP: 11, MASTER: 12, four: 44, rival: 50}
    steps |= {BASE: 10, TWO: 11, OTHER: 12, slow: 12, late: 14}
    found = summary_of(tmp_path / "worlds", steps).conclusions.answer[0]
    assert "4 ranks are slower (gpt:nano)" in found.tags
    found = summary_of(
        tmp_path / "one", {SINGLE: 10, DDP: 11, MASTER: 12, BASE: 10, TWO: 11}
    ).conclusions.answer[0]
    assert found.text.endswith("the others are slower.")


def test_a_speed_up_alone_is_an_answer(tmp_path: Path) -> None:
    found = summary_of(tmp_path, {SINGLE: 10, DDP: 12})
    assert answer(found).startswith("2 ranks with DDP train 1.6")


def test_an_asked_finding_is_added_and_an_undecided_one_is_not() -> None:
    asked = Finding(kind="precision", text=Sentence("bf16 is faster"), evidence="precision", verdict="faster")
    unsure = Finding(kind="inputs", text=Sentence("Who knows"), evidence="inputs", verdict="unresolved")
    assert answer_of([], [unsure, asked]) == (asked,)
    assert answer_of([], [unsure])[0].verdict == "too few"


def test_every_sentence_has_at_most_thirty_words(tmp_path: Path) -> None:
    found = summarize(write_run(tmp_path / "run", matrix(60), rounds=5, blocks=1, steps=2))
    for one in (*found.conclusions.answer, *found.conclusions.findings):
        assert len(one.text.split()) <= 30, one.text
