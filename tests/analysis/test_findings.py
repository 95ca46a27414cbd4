"""Sentences for known step times: their texts, and statements that they must not make."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.analysis import Finding, RunSummary, load, summarize
from ddpbench.analysis.findings.compared import _most_telling, decided_first
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.sentences import Sentence
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, Case, PlannedCase, StatedTraits
from tests.frames import framed
from tests.synthetic import (
    MS,
    WORKLOADS,
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

SINGLE, DDP, MASTER = case_of("single", 1), case_of("ddp", 2), case_of("master", 2)


def summary_of(
    path: Path,
    step_ms: Mapping[Case, float],
    *,
    rounds: int = 6,
    noise: float = 0.001,
    oversubscribed: tuple[Case, ...] = (),
) -> RunSummary:
    """Return the summary of a run with these step times, a common drift and separate noise."""
    run = RunDir(path / "run")
    planned = [PlannedCase(case=case, oversubscribed=case in oversubscribed) for case in step_ms]
    write_plan(run, planned, Budget(rounds_min=1, rounds_max=rounds))
    dice = random.Random(1)
    for number in range(rounds):
        drift = 1 + dice.uniform(-0.2, 0.2)
        for case, step in step_ms.items():
            step_ns = int(step * MS * drift * (1 + dice.gauss(0, noise)))
            samples = case.global_batch // processes_of(case)
            rank = RankLaunch(blocks=[[step_ns] * 10], samples_per_step=samples)
            write_launch(run, case, number, [rank] * processes_of(case))
    write_sessions(run)
    return summarize(run)


def texts(summary: RunSummary) -> str:
    return "\n".join(finding.line for finding in summary.conclusions.findings)


def test_own_ranks_that_promise_nothing_are_ahead_with_a_caveat_only(tmp_path: Path) -> None:
    traits = StatedTraits(
        display="Fast",
        spoken="Fast",
        promise="nothing",
        one_process=False,
        uses_buckets=False,
        shows_transfers_on_gpus=True,
        whole_state=True,
        note="",
        colour="",
        marker="",
    )
    own = case_of("mine.py:Fast", 2, strategy_traits=traits.to_text())
    summary = summary_of(tmp_path, {SINGLE: 10, DDP: 12, own: 10})
    (said,) = (one.line for one in summary.conclusions.findings if "Fast" in one.line and "DDP" in one.line)
    assert said.startswith("Fast (another path of training) is "), said


def test_the_faster_strategy_stands_first(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, DDP: 12, MASTER: 15})
    first = summary.conclusions.findings[0]
    assert first.line.startswith("DDP is 25.")
    assert "% [" in first.line
    assert "faster than master at 2 ranks, gpt:nano (6 launches each)." in first.line
    assert (first.verdict, first.evidence) == ("faster", "strategies")
    assert "measurable" not in first.line


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict", "words"),
    [
        (1.10, 0.001, "faster", "DDP is 10.0 %"),
        (1.01, 0.0005, "faster", "a small difference: within 2 %"),
        (1.03, 0.008, "faster", "the difference may be under 2 %"),
        (1.000, 0.003, "equivalent", "equivalent within 2 %"),
        (
            1.000,
            0.08,
            "unresolved",
            "no significant difference; steps may be up to 19 % longer or 14 % shorter",
        ),
        (0.80, 0.001, "faster", "Master is 25.0 %"),
    ],
)
def test_each_verdict_in_words(tmp_path: Path, ratio: float, noise: float, verdict: str, words: str) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, DDP: 14, MASTER: 14 * ratio}, noise=noise)
    found = next(finding for finding in summary.conclusions.findings if finding.evidence == "strategies")
    assert (found.verdict, words in found.line) == (verdict, True), found.text


def test_strategies_that_are_not_told_apart_from_one_share_a_sentence(tmp_path: Path) -> None:
    others = [case_of(name, 2) for name in ("zero1", "accelerate", "hf_trainer")]
    steps = {SINGLE: 10.0, DDP: 12.0, MASTER: 25.0, **dict.fromkeys(others, 12.0)}
    found = [
        one
        for one in summary_of(tmp_path, steps, noise=0.08).conclusions.findings
        if one.evidence == "strategies"
    ]
    assert [one.verdict for one in found] == ["faster", "unresolved"]
    last = found[-1]
    assert last.text.startswith(
        "ZeRO-1, Accelerate and the HF Trainer against DDP at 2 ranks, gpt:nano: no significant"
    )
    assert last.cases == (*(case.case_id for case in others), DDP.case_id)
    assert "corrected for 10 comparisons" in last.line
    longest, shortest = (
        float(part)
        for part in re.findall(r"at the widest ([\d.]+) % longer or ([\d.]+) % shorter", last.text)[0]
    )
    run = RunDir(tmp_path / "run")
    by_id = {one.case_id: one for one in read_cases(run, read_plan(run))}
    families = Families(list(by_id.values()))
    judged = [families.judge(by_id[case.case_id], by_id[DDP.case_id]) for case in others]
    ratios = [one.ratio for one in judged if one is not None]
    assert float(longest) == pytest.approx(100 * (max(one.high or 0 for one in ratios) - 1), rel=0.05)
    assert float(shortest) == pytest.approx(100 * (1 - min(one.low or 9 for one in ratios)), rel=0.05)


def test_variants_of_one_strategy_are_told_apart_in_every_sentence(tmp_path: Path) -> None:
    local = case_of("post_local_sgd", 2, algorithm="all_reduce", schedule="after_backward")
    options = [json.dumps({**local.options, "period": period}, sort_keys=True) for period in (4, 8)]
    four, eight = (replace(local, options_json=option) for option in options)
    summary = summary_of(tmp_path, {SINGLE: 7, DDP: 12, MASTER: 15, four: 9, eight: 7.5})
    sentences = [one.text for one in summary.conclusions.findings if "Local SGD" in one.text]
    assert len(sentences) == 2
    assert sum("period=4" in text for text in sentences) == 1
    assert sum("period=8" in text for text in sentences) == 1
    assert "DDP is 25." in texts(summary)  # a strategy with one variant has its name alone


def test_under_five_rounds_nothing_is_concluded(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, DDP: 12, MASTER: 25}, rounds=4)
    assert summary.conclusions.findings[0].verdict == "too few"
    assert "at most 4 rounds" in summary.conclusions.findings[0].line
    assert "too few rounds" in texts(summary)
    assert not {"faster", "slower", "equivalent"} & {
        finding.verdict for finding in summary.conclusions.findings
    }
    assert any("under 5 rounds" in text for text in summary.conclusions.validity)


def test_speed_up_and_base_case_are_stated(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, DDP: 12.5}, noise=0)
    assert "speed-up 1.60 [1.60, 1.60], efficiency 0.800 [0.800, 0.800] over one rank at" in texts(summary)


def test_oversubscribed_cases_make_no_headline(tmp_path: Path) -> None:
    crowd = case_of("ddp", 8)
    crowd_master = case_of("master", 8)
    summary = summary_of(
        tmp_path, {SINGLE: 10, crowd: 80, crowd_master: 120}, oversubscribed=(crowd, crowd_master)
    )
    assert summary.conclusions.findings == ()
    assert any("2 cases ran with more ranks than cores" in text for text in summary.conclusions.validity)
    # they are still compared with each other in the table
    table = framed(summary.steps.comparisons).set_index("case_id")["verdict"]
    assert table.to_dict() == {crowd.case_id: "best", crowd_master.case_id: "slower"}


def test_the_largest_fair_world_size_is_the_one_reported(tmp_path: Path) -> None:
    four, four_master, eight = case_of("ddp", 4), case_of("master", 4), case_of("ddp", 8)
    cases: dict[Case, float] = {SINGLE: 10, DDP: 12, MASTER: 12, four: 12, four_master: 24, eight: 99}
    summary = summary_of(tmp_path, cases, oversubscribed=(eight,))
    assert "DDP is 100.0 %" in summary.conclusions.findings[0].line
    assert "at 4 ranks" in summary.conclusions.findings[0].line
    assert "8 ranks" not in texts(summary)


def test_buckets_are_held_against_the_default_and_corrected(tmp_path: Path) -> None:
    caps = {1.0: 15.0, 5.0: 12.01, 25.0: 11.0}
    cases: dict[Case, float] = {SINGLE: 10, DDP: 12}
    cases |= {case_of("ddp", 2, bucket_cap_mb=cap): step for cap, step in caps.items()}
    summary = summary_of(tmp_path, cases)
    found = [finding for finding in summary.conclusions.findings if finding.evidence == "buckets"]
    assert [finding.verdict for finding in found] == ["slower", "faster", "equivalent"]
    assert "1 MiB buckets are 25." in found[0].line
    assert "25 MiB buckets are 9." in found[1].line
    assert all("corrected for 6 comparisons" in finding.line for finding in found)
    table = framed(summary.steps.comparisons)
    assert set(table["topic"]) == {"buckets", "ranks"}
    best = case_of("ddp", 2, bucket_cap_mb=25.0).case_id
    table = table[table["topic"] == "buckets"].set_index("case_id")
    assert set(table["best_case_id"].drop(best)) == {best}
    assert table.loc[best, "best_case_id"] == DDP.case_id
    assert table.loc[DDP.case_id, "ratio"] == pytest.approx(12 / 11, rel=2e-3)
    assert table.loc[best, "ratio"] == pytest.approx(11 / 12, rel=2e-3)
    assert table["verdict"].to_dict() == dict.fromkeys(table.index, "slower") | {best: "best"}


def test_the_upper_bound_is_called_one(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, case_of("independent", 2): 10.5, DDP: 12})
    found = summary.conclusions.findings[0]
    assert (found.verdict, found.badge) == ("slower", "cost")  # being behind it is expected
    assert "A step of DDP takes 14." in found.line
    assert "independent ranks, which exchange nothing" in found.line
    assert not summary.steps.comparisons  # a bound is not ranked


def test_at_most_seven_and_every_panel_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", matrix(60), rounds=5, blocks=1, steps=2)
    summary = summarize(run)
    assert len(summary.conclusions.findings) == 7
    assert all(any(name in finding.line for name in WORKLOADS) for finding in summary.conclusions.findings)
    evidence = {finding.evidence for finding in summary.conclusions.findings}
    assert {"strategies", "scaling", "breakdown", "laws"} <= evidence, "of several kinds"


def test_emulated_numbers_have_labels(tmp_path: Path) -> None:
    slow = {"fabric": "1 Gbit/s", "dilation": 10.0}
    ddp, master = case_of("ddp", 2, **slow), case_of("master", 2, **slow)
    summary = summary_of(tmp_path, {ddp: 12, master: 24})
    assert "emulated 1 Gbit/s link; dilated x10" in summary.conclusions.findings[0].line


def test_a_diverged_case_is_never_ranked(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP, MASTER], Budget(rounds_min=1, rounds_max=6))
    write_proof(run, MASTER, Outcome(status="diverged", error="gradients differ"))
    for number in range(6):
        write_launch(run, SINGLE, number, [RankLaunch()])
        for case in (DDP, MASTER):
            write_launch(run, case, number, [RankLaunch()] * 2)
    write_sessions(run)
    summary = summarize(run)
    assert "master" not in texts(summary).lower()
    assert not summary.steps.comparisons


def test_a_strategy_that_is_inexact_by_design_is_called_so(tmp_path: Path) -> None:
    local = case_of("post_local_sgd", 2, algorithm="all_reduce", schedule="after_backward")
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP, local], Budget(rounds_min=1, rounds_max=6))
    write_proof(run, local, compared="parameters, averaged")
    for number in range(6):
        for case, step in ((SINGLE, 10), (DDP, 12), (local, 11)):
            write_launch(run, case, number, [RankLaunch(blocks=[[step * MS] * 10])] * processes_of(case))
    write_sessions(run)
    assert texts(summarize(run)).startswith("Local SGD (another path of training) is 9.1 %")


def finding(verdict: str, evidence: str = "strategies") -> Finding:
    return Finding(
        kind="strategies", text=Sentence(f"{verdict} {evidence}"), evidence=evidence, verdict=verdict
    )  # type: ignore[arg-type]


def test_findings_begin_with_what_was_decided_and_end_with_what_was_not() -> None:
    found = [
        finding("unresolved"),
        finding("note", "scaling"),
        finding("too few"),
        finding("slower", "links"),
        finding("equivalent"),
    ]
    assert [one.verdict for one in decided_first(found)] == [
        "slower",
        "equivalent",
        "note",
        "unresolved",
        "too few",
    ]


def decision(
    verdict: str,
    kind: str = "strategies",
    strategy: str = "master",
    ratio: float = 1.2,
    workload: str = "gpt:nano",
) -> Any:
    """Return a pair and its judgement, with the fields by which decisions are chosen."""
    a, b = (
        SimpleNamespace(case=case_of(strategy, 2)),
        SimpleNamespace(case=case_of("ddp", 2, workload=workload)),
    )
    judged = SimpleNamespace(verdict=verdict, ratio=SimpleNamespace(value=ratio))
    return SimpleNamespace(kind=kind, a=a, b=b), judged


def test_of_a_strategy_s_variants_the_fastest_is_told_first() -> None:
    slow, fast, other = (
        decision("slower", strategy="pipeline", ratio=1.63),
        decision("slower", strategy="pipeline", ratio=1.2),
        decision("slower", ratio=1.4),
    )
    assert _most_telling([slow, fast, other], 3) == [fast, other, slow]
    assert _most_telling([slow, fast, other], 1) == [fast]
    # in the other panel nothing is faster or slower
    larger = [decision("slower", ratio=ratio, workload=name) for name, ratio in [("a", 2.0), ("b", 1.5)]]
    assert _most_telling(larger, 1) == larger[:1]


def test_an_undecided_bucket_takes_no_decided_ones_place() -> None:
    decided = [decision("faster"), decision("equivalent"), decision("slower")]
    assert _most_telling([decision("unresolved", "buckets"), *decided], 3) == [
        decided[0],
        decided[2],
        decided[1],
    ]
    chosen = _most_telling([decision("slower", "buckets"), *decided], 3)
    assert [pair.kind for pair, _ in chosen] == ["strategies", "strategies", "buckets"]
    # among undecided ones buckets get the last place
    unsure = [decision("unresolved", "layouts"), decision("unresolved"), decision("unresolved", "buckets")]
    assert [pair.kind for pair, _ in _most_telling([*decided[:1], *unsure], 2)] == ["strategies", "buckets"]


def test_strategies_stand_before_the_bound_and_buckets_last() -> None:
    kinds = ["buckets", "bound", "layouts", "strategies"]
    chosen = _most_telling([decision("faster", kind) for kind in kinds], 4)
    assert [pair.kind for pair, _ in chosen] == ["layouts", "strategies", "bound", "buckets"]


def test_a_bucket_that_is_decided_stands_above_a_strategy_that_is_not(tmp_path: Path) -> None:
    # master's steps scatter too much for any verdict on it
    run = RunDir(tmp_path / "run")
    slow = case_of("ddp", 2, bucket_cap_mb=1.0)
    write_plan(run, [SINGLE, DDP, slow, MASTER], Budget(rounds_min=1, rounds_max=6))
    for number, scatter in enumerate((0.7, 1.3, 0.8, 1.2, 0.75, 1.25)):
        for case, step in ((SINGLE, 10.0), (DDP, 12.0), (slow, 15.0), (MASTER, 12 * scatter)):
            blocks = [[int(step * MS * (1 + number / 1000))] * 10]
            write_launch(run, case, number, [RankLaunch(blocks=blocks)] * processes_of(case))
    write_sessions(run)
    found = [(one.verdict, one.evidence) for one in summarize(run).conclusions.findings]
    assert found[0] == ("slower", "buckets")
    assert found[-1] == ("unresolved", "strategies")
    assert ("note", "scaling") in found[1:-1]


@pytest.mark.parametrize(
    ("timed_ms", "remark"),
    [
        (20, ""),
        (16, ", 25 % longer than timed ones: see Validity"),
        (25, ", 20 % shorter than timed ones: see Validity"),
    ],
)
def test_shares_of_a_step_have_intervals(tmp_path: Path, timed_ms: int, remark: str) -> None:
    # in steps of 20 ms, 2 to 6 ms of transfers follow backward: 4 ms, with s = sqrt(2.5) ms over five
    # launches
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP], Budget(rounds_min=1, rounds_max=5))
    for number, exposed in enumerate((2, 3, 4, 5, 6)):
        start = 10**12
        spans = [("forward", start, start + 6 * MS), ("backward", start + 6 * MS, start + 14 * MS)]
        moved = (0, "all_reduce", 1000, start + 10 * MS, start + (14 + exposed) * MS)
        step = (start, start + 20 * MS, spans, [moved])
        write_launch(run, SINGLE, number, [RankLaunch()])
        write_launch(run, DDP, number, [RankLaunch(blocks=[[timed_ms * MS] * 10], steps=[step])] * 2)
    write_sessions(run)
    (text,) = [one.line for one in summarize(run).conclusions.findings if one.evidence == "breakdown"]
    assert f"instrumented steps of 5 launches{remark})." in text
    half = 2.776445 * (2.5 / 5) ** 0.5 / 20
    ends = f"[{100 * (0.2 - half):.0f}, {100 * (0.2 + half):.0f}]"
    assert f"20 % {ends} of a step is exposed communication" in text
    assert "0 % [0, 0] waiting for ranks" in text


def test_a_finding_s_cases_and_ratio_say_what_its_verdict_says(tmp_path: Path) -> None:
    """The first case's step over the last one's: above 1 where it is slower, in any order of the sentence."""
    run = write_run(tmp_path / "run", 17, rounds=7, blocks=2, steps=4)
    found = [one for one in summarize(run).conclusions.findings if one.ratio is not None]
    assert {one.verdict for one in found} & {"faster", "slower"}
    by_id = load(run).set_index("case_id")["step_time_s"]
    for one in found:
        assert one.ratio is not None
        if one.verdict == "faster":
            assert one.ratio.value < 1, one
        if one.verdict == "slower":
            assert one.ratio.value > 1, one
        first, *_, last = one.cases
        assert one.ratio.value == pytest.approx(by_id[first] / by_id[last], rel=0.05)
