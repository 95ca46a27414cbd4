"""Verdicts on claims: how often they are wrong where the truth is known, and their texts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpbench.analysis import RunSummary, summarize
from ddpbench.analysis.findings.claims import claim_findings, decided_claims
from ddpbench.analysis.invariants.checked import Bounded, Violation
from ddpbench.analysis.read.launches import CaseRun, Launch
from ddpbench.analysis.read.pace import Pacing
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.analysis.summary import DecidedClaim
from ddpbench.cli import run as cli
from ddpbench.launch.merge.merge import merge
from ddpbench.records import RunDir
from ddpbench.report.sections.claims import section as claims_section
from ddpbench.report.summary_json import embedded_json
from ddpbench.spec import Budget, Case, PlannedCase
from ddpbench.spec.claims import Past, PlannedClaim
from tests.report.reading import read
from tests.synthetic import (
    MS,
    Outcome,
    RankLaunch,
    case_of,
    processes_of,
    write_launch,
    write_plan,
    write_sessions,
)

SINGLE, DDP, PARALLEL = case_of("single", 1), case_of("ddp", 2), case_of("data_parallel", 2)
WIDE, WIDE_PARALLEL = (replace(case, workload="mlp:large") for case in (DDP, PARALLEL))
MASTERS = [case_of("master", ranks) for ranks in (2, 4, 8)]
SAYS = "replicas of threads train slower"
TRIALS = 1000


def claim(*pairs: tuple[Case, Case], **more: Any) -> PlannedClaim:
    """Return a claim on pairs of cases: that the first of each is faster, unless `more` says otherwise."""
    ids = tuple((a.case_id, b.case_id) for a, b in pairs)
    return PlannedClaim(**{"says": SAYS, "kind": "faster", "pairs": ids, **more})


def run_of(
    case: Case,
    step_s: Iterable[float],
    *,
    sessions: Sequence[str] = (),
    status: str = "ok",
    planned: Mapping[str, Any] | None = None,
) -> CaseRun:
    """Return a case as it was read: a launch of ten steps for each step time."""
    case_id = case.case_id
    launches = [
        Launch(
            case_id=case_id,
            round=number,
            status="ok",
            timing=Timing(
                round=number,
                time_s=10 * step,
                steps=10,
                samples=10 * case.global_batch,
                session=sessions[number] if sessions else "",
            ),
        )
        for number, step in enumerate(step_s)
    ]
    return CaseRun(
        planned=PlannedCase(case=case, **(planned or {})),
        launches=tuple(launches),
        proof=None,
        parts=None,
        status=status,  # type: ignore[arg-type]
        error="" if status == "ok" else "a rank raised: boom",
        case_id=case.case_id,
        baseline_id=case.baseline().case_id,
    )


def measured(
    dice: random.Random, ratios: Mapping[Case, float], rounds: int = 8, noise: float = 0.03
) -> list[CaseRun]:
    """Return cases with these ratios of true step times, a common drift and separate noise."""
    drift = [1 + dice.uniform(-0.2, 0.2) for _ in range(rounds)]
    return [
        run_of(case, [0.01 * ratio * shared * (1 + dice.gauss(0, noise)) for shared in drift])
        for case, ratio in ratios.items()
    ]


def decided(of: PlannedClaim, runs: Sequence[CaseRun]) -> DecidedClaim:
    (found,) = decided_claims([of], runs)
    return found


def test_a_case_whose_numbers_cannot_be_right_decides_no_claim() -> None:
    runs = [run_of(DDP, [0.01] * 6), run_of(PARALLEL, [0.02] * 6)]
    wrong = Violation(
        invariant="at_most_the_ranks",
        statement="a speed-up is at most the number of ranks",
        meaning="",
        kind="doubtful",
        case_id=DDP.case_id,
        label="DDP at 2 ranks",
        broken=Bounded(what="its speed-up", seen=3.1, most=2.5),
    )
    assert decided(claim((DDP, PARALLEL)), runs).verdict == "holds"
    (found,) = decided_claims([claim((DDP, PARALLEL))], runs, {DDP.case_id: wrong})
    assert found.verdict == "cannot tell"
    message = found.pairs[0].reason
    assert (
        message
        == "the numbers of DDP at 2 ranks cannot be right: its speed-up is 3.1; at most 2.5 is allowed"
    )


def shares(of: PlannedClaim, ratios: Mapping[Case, float], **more: Any) -> Callable[[str], float]:
    """Return a function for how often a claim gets each verdict over many runs with these true ratios of step times."""
    dice = random.Random(2004)
    found = [decided(of, measured(dice, ratios, **more)).verdict for _ in range(TRIALS)]
    return lambda verdict: found.count(verdict) / TRIALS  # type: ignore[arg-type]


def test_of_two_identical_cases_one_is_called_faster_in_at_most_5_per_cent() -> None:
    found = shares(claim((DDP, PARALLEL)), {DDP: 1.0, PARALLEL: 1.0})
    # 2.5 % are allowed on this side; 1.5 % more are three standard errors of a thousand runs
    assert found("holds") <= 0.04
    assert found("holds") > 0.005, "the test would not see an interval that is far too wide"


def test_of_several_identical_pairs_any_is_called_faster_in_at_most_5_per_cent() -> None:
    worlds = (2, 4, 8, 16, 32)
    pairs = [(case_of("ddp", n), case_of("data_parallel", n)) for n in worlds]
    found = shares(claim(*pairs), dict.fromkeys((case for pair in pairs for case in pair), 1.0))
    assert found("holds") + found("holds in part") <= 0.04


def test_a_lead_that_is_just_as_large_as_claimed_is_not_decided_in_95_per_cent() -> None:
    found = shares(claim((DDP, PARALLEL), margin=0.10), {DDP: 1.0, PARALLEL: 1.10})
    assert 0.005 < found("holds") <= 0.04
    assert 0.005 < found("does not hold") <= 0.04
    assert shares(claim((DDP, PARALLEL)), {DDP: 1.0, PARALLEL: 1.10})("holds") > 0.9


def test_a_difference_that_is_just_as_large_as_the_margin_is_called_equal_in_at_most_5_per_cent() -> None:
    at_margin = {DDP: 1.0, PARALLEL: 1.05}
    found = shares(claim((DDP, PARALLEL), kind="as fast", margin=0.05), at_margin)
    assert 0.005 < found("holds") <= 0.04
    assert 0.005 < found("does not hold") <= 0.04
    inside = shares(claim((DDP, PARALLEL), kind="as fast", margin=0.10), {DDP: 1.0, PARALLEL: 1.01})
    assert inside("holds") > 0.9


def test_swapped_sides_get_the_opposite_verdict() -> None:
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: 1.3})
    assert decided(claim((DDP, PARALLEL)), runs).verdict == "holds"
    assert decided(claim((PARALLEL, DDP)), runs).verdict == "does not hold"


@pytest.mark.parametrize(
    ("of", "ratio", "noise", "verdict"),
    [
        ({}, 1.3, 0.01, "holds"),
        ({}, 0.8, 0.01, "does not hold"),
        ({}, 1.0, 0.002, "does not hold"),  # as fast, within the margin of all verdicts
        ({}, 1.0, 0.08, "cannot tell"),
        ({"margin": 0.2}, 1.3, 0.01, "holds"),
        ({"margin": 0.5}, 1.3, 0.01, "does not hold"),
        ({"margin": 0.3}, 1.3, 0.01, "cannot tell"),
        ({"kind": "as fast", "margin": 0.03}, 1.0, 0.002, "holds"),
        ({"kind": "as fast", "margin": 0.03}, 1.01, 0.002, "holds"),  # a difference that is there, and small
        ({"kind": "as fast", "margin": 0.03}, 1.3, 0.01, "does not hold"),
        ({"kind": "as fast", "margin": 0.03}, 1.04, 0.02, "cannot tell"),
        ({"kind": "as fast", "margin": 0.03}, 1.0, 0.08, "cannot tell"),
    ],
)
def test_each_verdict(of: Mapping[str, Any], ratio: float, noise: float, verdict: str) -> None:
    runs = measured(random.Random(3), {DDP: 1.0, PARALLEL: ratio}, noise=noise)
    assert decided(claim((DDP, PARALLEL), **of), runs).verdict == verdict


def test_what_holds_of_one_pair_and_not_of_another_holds_in_part() -> None:
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: 1.3, WIDE: 1.0, WIDE_PARALLEL: 0.93}, noise=0.01)
    both = claim((DDP, PARALLEL), (WIDE, WIDE_PARALLEL))
    found = decided(both, runs)
    assert found.verdict == "holds in part"
    assert [(one.place, one.verdict) for one in found.pairs] == [
        ("gpt:nano", "holds"),
        ("mlp:large", "does not hold"),
    ]
    (message,) = claim_findings([found], runs)
    assert message.text.startswith(f"Holds in part: {SAYS}; ")
    assert "faster for gpt:nano, not for mlp:large (" in message.text
    assert message.text.count("[") == 2, "both have their interval"
    assert "corrected for 2 comparisons" in message.line


def test_one_pair_that_is_undecided_keeps_a_claim_from_holding() -> None:
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: 1.3}, noise=0.01)
    runs += measured(random.Random(1), {WIDE: 1.0, WIDE_PARALLEL: 1.0}, noise=0.08)
    found = decided(claim((DDP, PARALLEL), (WIDE, WIDE_PARALLEL)), runs)
    assert found.verdict == "holds in part"
    (message,) = claim_findings([found], runs)
    assert "cannot tell for mlp:large" in message.text
    against = decided(claim((PARALLEL, DDP), (WIDE_PARALLEL, WIDE)), runs)
    assert against.verdict == "does not hold"


def test_intervals_are_wider_the_more_pairs_a_claim_has() -> None:
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: 1.1, WIDE: 1.0, WIDE_PARALLEL: 1.1})
    alone = decided(claim((DDP, PARALLEL)), runs).pairs[0].ratio
    corrected = decided(claim((DDP, PARALLEL), (WIDE, WIDE_PARALLEL)), runs).pairs[0].ratio
    assert alone is not None
    assert corrected is not None
    assert corrected.value == alone.value
    assert (corrected.low or 0) < (alone.low or 0) < (alone.high or 0) < (corrected.high or 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "unfinished"}, "DataParallel (threads) at 2 ranks has too few rounds"),
        ({"status": "oom"}, "DataParallel (threads) at 2 ranks ran out of memory"),
        ({"status": "diverged"}, "DataParallel (threads) at 2 ranks diverged"),
        ({"planned": {"skip_reason": "needs 2 GPUs"}}, "DataParallel (threads) at 2 ranks was skipped"),
        ({"planned": {"oversubscribed": True}}, "DataParallel (threads) at 2 ranks has more threads than cores"),
        ({"sessions": ["b"] * 8}, "the two share no rounds, as after a merge"),
    ],
)  # fmt: skip
def test_a_case_that_is_not_comparable_decides_nothing(changes: Mapping[str, Any], words: str) -> None:
    drift = [0.010, 0.011, 0.012, 0.013, 0.012, 0.011, 0.010, 0.009]
    mine = run_of(DDP, drift, sessions=["a"] * 8)
    other = run_of(PARALLEL, [2 * one for one in drift], **{"sessions": ["a"] * 8, **changes})
    found = decided(claim((DDP, PARALLEL)), [mine, other])
    assert found.verdict == "cannot tell"
    assert found.pairs[0].ratio is None
    assert found.pairs[0].reason.startswith(words)
    (message,) = claim_findings([found], [mine, other])
    assert message.text == f"Cannot tell: {SAYS}; {words}."
    whole = [mine, run_of(PARALLEL, [2 * one for one in drift], sessions=["a"] * 8)]
    assert decided(claim((DDP, PARALLEL)), whole).verdict == "holds"


def test_a_failed_case_leaves_the_other_pairs_their_verdict_and_their_error() -> None:
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: 1.3, WIDE: 1.0}, noise=0.01)
    runs.append(run_of(WIDE_PARALLEL, [], status="failed"))
    found = decided(claim((DDP, PARALLEL), (WIDE, WIDE_PARALLEL)), runs)
    assert [one.verdict for one in found.pairs] == ["holds", "cannot tell"]
    assert found.pairs[1].reason.endswith("failed: a rank raised: boom")
    assert found.comparisons == 1
    assert found.pairs[0].ratio == decided(claim((DDP, PARALLEL)), runs).pairs[0].ratio


def past(number: int, verdict: str, says: str = SAYS, **more: Any) -> Past:
    """Return an entry of a claim's history."""
    return Past(
        **{
            "number": number,
            "says": says,
            "settings": "",
            "run": "a" * 12,
            "date": "",
            "verdict": verdict,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("history", "sentence"),
    [
        ((), ""),
        ((past(1, "no run kept", run=""),), ""),
        ((past(2, "cannot tell: 3 %"),), "earlier verdict: cannot tell, then measured again"),
        ((past(1, "holds"),), "earlier verdict: holds, then changed"),
        ((past(1, "does not hold", says="another"),), "earlier verdict: does not hold, then reworded"),
        (
            (past(1, "does not hold", says="another"), past(1, "cannot tell", says="another")),
            "earlier verdicts: does not hold, cannot tell, then reworded",
        ),
        (
            (past(1, "does not hold", says="a"), past(3, "holds", says="b")),
            "earlier verdicts: does not hold, holds, then reworded twice",
        ),
    ],
)
def test_a_verdict_names_the_earlier_ones(history: tuple[Past, ...], sentence: str) -> None:
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: 1.3})
    found = decided(claim((DDP, PARALLEL), number=2, history=history), runs)
    (message,) = claim_findings([found], runs)
    assert [tag for tag in message.tags if tag.startswith("earlier")] == ([sentence] if sentence else [])


@pytest.mark.parametrize(
    ("ratio", "margin", "words"),
    [
        (1.0, 0.2, r"step times differ by [+−]\S+ % \[.*\], inside the 20 % allowed"),
        (1.13, 0.2, r"its step is 1[23]\S* % \[.*\] shorter, inside the 20 % allowed"),
        (0.88, 0.2, r"its step is 1[34]\S* % \[.*\] longer, inside the 20 % allowed"),
        (1.5, 0.2, r"DDP is 1?\.?5\S* .*, beyond the 20 % allowed"),
    ],
)
def test_a_claim_of_equality_is_told_with_its_margin(ratio: float, margin: float, words: str) -> None:
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: ratio}, noise=0.005)
    found = decided(claim((DDP, PARALLEL), kind="as fast", margin=margin), runs)
    (message,) = claim_findings([found], runs)
    assert re.search(words, message.text), message.text


def test_the_page_lists_earlier_wordings_folded(tmp_path: Path) -> None:
    before = past(1, "does not hold: 2.9 times as long", says="threads cost nothing", commit="692bb8c8")
    run = RunDir(tmp_path / "run")
    write_plan(run, [DDP, PARALLEL], claims=[claim((DDP, PARALLEL), number=2, history=(before,))])
    write_sessions(run)
    section = claims_section(summarize(run).conclusions.claims, [])
    assert section is not None
    table = section.tables[-1]
    assert table.fold == "Earlier wordings and verdicts"
    (row,) = table.rows
    assert [cell.text for cell in row][:4] == [f"2. {SAYS}", "1. threads cost nothing", "", "does not hold"]
    assert [cell.under for cell in row][3:5] == ["2.9 times as long", "commit 692bb8c8"]


def test_under_five_rounds_nothing_is_decided() -> None:
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: 2.0}, rounds=4, noise=0.01)
    found = decided(claim((DDP, PARALLEL)), runs)
    assert (found.verdict, found.pairs[0].rounds) == ("cannot tell", 4)
    assert found.pairs[0].reason == "4 rounds of both in one session, and under 5 is too few"


def test_a_claim_without_a_pair_in_this_run_is_told() -> None:
    found = decided(claim(), [])
    (message,) = claim_findings([found], [])
    assert message.text == f"Cannot tell: {SAYS}; no two cases of this run are its two sides."


def test_step_times_and_throughput_are_held_apart_where_steps_have_unlike_samples() -> None:
    """Steps of 8 ranks take 3 times as long as those of 2, and have 4 times the samples: more samples/s."""
    runs = measured(random.Random(1), {MASTERS[0]: 1.0, MASTERS[2]: 3.0}, noise=0.01)
    pair = (MASTERS[0], MASTERS[2])
    by_step, by_rate = (decided(claim(pair, of=of), runs) for of in ("step time", "throughput"))
    assert (by_step.verdict, by_rate.verdict) == ("holds", "does not hold")
    step, rate = by_step.pairs[0].ratio, by_rate.pairs[0].ratio
    assert step is not None
    assert rate is not None
    assert 1 / step.value == pytest.approx(3, rel=0.02)
    assert rate.value / step.value == pytest.approx(4)
    texts = [one.text for one in claim_findings([by_step, by_rate], runs)]
    assert "a step of master at 8 ranks takes 3.0" in texts[0]
    assert "times as long as one of master at 2 ranks" in texts[0]
    assert "master at 2 ranks trains 0.7" in texts[1]
    assert "times the samples/s of master at 8 ranks" in texts[1]


def test_pairs_of_own_workloads_are_told_apart_by_their_classes() -> None:
    """Their paths, options and batches would fill the sentence."""
    own, own_parallel = (
        replace(
            case, workload="experiments/a/b.py:Mine", local_batch=32, workload_options_json='{"depth": 3}'
        )
        for case in (DDP, PARALLEL)
    )
    runs = measured(random.Random(1), {DDP: 1.0, PARALLEL: 1.3, own: 1.0, own_parallel: 1.3}, noise=0.01)
    found = decided(claim((DDP, PARALLEL), (own, own_parallel)), runs)
    assert [one.place for one in found.pairs] == ["gpt:nano", "Mine"]


def test_growth_is_told_of_every_strategy_that_grows() -> None:
    two, eight = case_of("ddp", 2), case_of("ddp", 8)
    runs = measured(random.Random(1), {MASTERS[0]: 1.0, MASTERS[2]: 6.0, two: 1.0, eight: 1.2}, noise=0.01)
    found = decided(claim((MASTERS[0], MASTERS[2]), (two, eight), of="step time", margin=1.0), runs)
    assert [(one.place, one.verdict) for one in found.pairs] == [
        ("master", "holds"),
        ("DDP", "does not hold"),
    ]
    (message,) = claim_findings([found], runs)
    assert "the other's step is 6.0" in message.text
    assert "times as long for master, not for DDP" in message.text


@pytest.mark.parametrize(("share", "verdict"), [(0.85, "holds"), (0.95, "cannot tell")])
def test_replays_that_fill_this_machine_s_cores_decide_nothing(share: float, verdict: str) -> None:
    pace = Pacing(lateness_s=np.zeros(10), cpu_s=share, cores_s=1.0, optimizer_s=0.0, due_s=0.0)
    runs = [
        replace(run, launches=tuple(replace(launch, pace=pace) for launch in run.launches))
        for run in measured(random.Random(1), {DDP: 1.0, PARALLEL: 1.3})
    ]
    found = decided(claim((DDP, PARALLEL)), runs)
    assert found.verdict == verdict
    (message,) = claim_findings([found], runs)
    said = "DDP at 2 ranks took 95 % of this machine's cores, so that these set its pace"
    assert (said in message.text) is (verdict == "cannot tell")


def test_two_sides_are_named_by_what_tells_them_apart_where_more_does_not_fit() -> None:
    few, many = (
        case_of("master", ranks, fabric="100 Gbit/s", nodes=ranks, bucket_cap_mb=1000.0) for ranks in (2, 32)
    )
    runs = measured(random.Random(1), {few: 1.0, many: 4.8}, noise=0.01)
    says = "from 2 to 32 workers a master's step doubles or more"
    found = decided(claim((few, many), of="step time", margin=1.0, says=says), runs)
    (message,) = claim_findings([found], runs)
    assert "; a step of 32 ranks takes 4.8" in message.text
    assert "times as long as one of 2 ranks" in message.text


def test_another_path_of_training_is_a_tag() -> None:
    local = case_of("post_local_sgd", 2)
    runs = measured(random.Random(1), {local: 1.0, DDP: 1.3})
    (message,) = claim_findings(decided_claims([claim((local, DDP))], runs), runs)
    assert "another path of training" in message.line


def a_run(
    path: Path, step_ms: Mapping[Case, float], claims: Sequence[PlannedClaim], **machine: str
) -> RunDir:
    """Write a run of six rounds."""
    run = RunDir(path)
    write_plan(run, list(step_ms), Budget(rounds_min=5, rounds_max=6), claims=claims)
    if machine:
        data = json.loads(run.machine.read_text(encoding="utf-8"))
        data["context"] |= machine
        run.machine.write_text(json.dumps(data), encoding="utf-8")
    dice = random.Random(1)
    for number in range(6):
        drift = 1 + dice.uniform(-0.2, 0.2)
        for case, step in step_ms.items():
            rank = RankLaunch(
                blocks=[[int(step * MS * drift * (1 + dice.gauss(0, 0.003)))] * 10],
                samples_per_step=case.global_batch // processes_of(case),
            )
            write_launch(run, case, number, [rank] * processes_of(case), Outcome())
    write_sessions(run)
    return run


STEPS = {SINGLE: 10.0, DDP: 11.0, PARALLEL: 14.0, WIDE: 11.0, WIDE_PARALLEL: 11.0}
CLAIMS = (
    claim((DDP, PARALLEL), (WIDE, WIDE_PARALLEL), source="A page, its title"),
    claim((WIDE, WIDE_PARALLEL), kind="as fast", margin=0.03),
)


@pytest.fixture(scope="module")
def claimed(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    return summarize(a_run(tmp_path_factory.mktemp("claims") / "run", STEPS, CLAIMS))


def test_findings_begin_with_the_claims_in_their_order(claimed: RunSummary) -> None:
    assert [one.verdict for one in claimed.conclusions.findings[:2]] == ["holds in part", "holds"]
    assert [one.kind == "claim" for one in claimed.conclusions.findings] == [True, True] + [False] * (
        len(claimed.conclusions.findings) - 2
    )
    assert 3 <= len(claimed.conclusions.findings) - 2 <= 5
    first = claimed.conclusions.findings[0]
    assert "(claimed in A page, its title; 6 launches each; corrected for 2 comparisons)" in first.line
    assert (first.badge, first.evidence) == ("claim", "claims")
    assert len(first.text.split()) <= 30


def test_the_summary_s_json_has_claims_with_their_pairs(claimed: RunSummary) -> None:
    (first, second) = json.loads(embedded_json(claimed))["claims"]
    assert (first["verdict"], second["verdict"]) == ("holds in part", "holds")
    assert (first["pairs"][0]["a"], first["pairs"][0]["b"]) == (DDP.case_id, PARALLEL.case_id)
    assert first["pairs"][0]["verdict"] == "holds"
    assert set(first["pairs"][0]["ratio"]) == {"value", "low", "high"}


def test_a_run_without_claims_has_none_anywhere(tmp_path: Path) -> None:
    summary = summarize(a_run(tmp_path / "run", STEPS, ()))
    assert not summary.conclusions.claims
    assert "claims" not in json.loads(embedded_json(summary))
    assert all(one.kind != "claim" for one in summary.conclusions.findings)


def test_a_merge_keeps_claims_each_once_and_their_verdicts(tmp_path: Path) -> None:
    near = a_run(tmp_path / "near", {DDP: 11.0, PARALLEL: 14.0}, [claim((DDP, PARALLEL))], host="a")
    both = a_run(tmp_path / "far", STEPS, CLAIMS[1:], host="b")
    wide = a_run(tmp_path / "wide", STEPS, [claim((WIDE, WIDE_PARALLEL))], host="c")
    merged = merge([near.path, both.path, wide.path], tmp_path / "all")
    summary = summarize(merged.run)
    assert [(one.kind, one.verdict, len(one.pairs)) for one in summary.conclusions.claims] == [
        ("faster", "holds in part", 2),
        ("as fast", "holds", 1),
    ]
    assert summary.conclusions.claims[0].pairs[0].rounds == 18, (
        "rounds of all runs count, each within its own"
    )


def test_a_merge_keeps_a_claim_once_with_the_history_of_all_runs(tmp_path: Path) -> None:
    first, second = past(1, "does not hold", says="another"), past(2, "cannot tell")
    runs = [
        a_run(
            tmp_path / host,
            {DDP: 11.0, PARALLEL: 14.0},
            [claim((DDP, PARALLEL), number=2, history=known)],
            host=host,
        )
        for host, known in (("a", (first,)), ("b", (first, second)))
    ]
    merged = merge([run.path for run in runs], tmp_path / "all")
    (found,) = summarize(merged.run).conclusions.claims
    assert (found.number, found.history) == (2, (first, second))


def test_a_plan_whose_claim_is_about_no_case_of_it_is_refused(tmp_path: Path) -> None:
    from ddpbench.errors import IdentityError

    run = a_run(tmp_path / "run", {DDP: 11.0, PARALLEL: 14.0}, [claim((DDP, PARALLEL))])
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    plan["claims"][0]["pairs"][0][1] = "master-w2-00000000"
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(
        IdentityError, match="a claim is about 'master-w2-00000000', which is not one of its cases"
    ):
        summarize(run)
    plan["claims"][0]["pairs"] = [[DDP.case_id]]
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(IdentityError, match=r"claims\.0\.pairs"):
        summarize(run)


def test_the_page_begins_its_findings_with_claims_and_shows_their_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run", STEPS, CLAIMS)
    assert cli(["report", str(run.path)]) == 0
    message = capsys.readouterr()
    assert message.out.strip() == str(run.path / "report.html")
    verdicts = [line for line in message.err.splitlines() if SAYS in line]
    assert [line.partition(":")[0] for line in verdicts] == ["Holds in part", "Holds here"]
    page = read((run.path / "report.html").read_text(encoding="utf-8"))
    findings = page.all("ol", class_="findings")[0].text.replace("\N{NO-BREAK SPACE}", " ")
    assert re.match(rf"claim ?Holds in part: {SAYS}; ", findings)
    captions = [one.text.replace("\N{NO-BREAK SPACE}", " ") for one in page.all("caption")]
    (first, second) = [text for text in captions if SAYS in text]
    assert f"{SAYS}: holds in part. Claimed in A page, its title. Paired within rounds" in first
    assert f"{SAYS}: holds. Asked of each pair: within 3 %." in second
    assert "claims" in page.ids


@pytest.mark.parametrize(
    ("times", "shares_of", "verdict"),
    [
        ((1.0, 1.5), (0.3, 0.3), "holds"),  # the other's step may be 1.05 long
        ((1.0, 1.5), (0.3, 0.4), "cannot tell"),  # or 0.9
        ((1.0, 1.5), (0.45, 0.0), "holds"),  # better still if the first is shorter
        ((1.5, 1.0), (0.3, 0.3), "does not hold"),
        ((1.5, 1.0), (0.4, 0.0), "cannot tell"),
        ((1.0, 9.0), (0.9, 0.8), "holds"),  # at least 1.8 long
        ((1.0, 9.0), (0.3, 1.0), "cannot tell"),  # nothing is known
        ((1.0, 9.0), (0.3, None), "cannot tell"),
    ],
)
def test_what_sharing_cores_may_have_cost_decides_nothing(
    times: tuple[float, float], shares_of: tuple[float, float | None], verdict: str
) -> None:
    runs = measured(random.Random(3), dict(zip((DDP, PARALLEL), times, strict=True)), noise=0.01)
    runs = [
        replace(
            run,
            planned=replace(run.planned, oversubscribed=True),
            launches=tuple(replace(launch, cpu_share=share) for launch in run.launches),
        )
        for run, share in zip(runs, shares_of, strict=True)
    ]
    found = decided(claim((DDP, PARALLEL)), runs)
    assert found.verdict == verdict
    (message,) = claim_findings([found], runs)
    held = found.pairs[0]
    if held.ratio is None:
        assert held.reason.endswith("has more threads than cores")
        assert "intervals allow for shared cores" not in message.tags
        return
    assert "intervals allow for shared cores" in message.tags
    worst = max(share or 0.0 for share in shares_of)
    assert f"ranks shared cores: up to {100 * worst:.0f} % of a step may be waiting for them" in message.tags
    mine, other = (share or 0.0 for share in shares_of)
    ratio = times[0] / times[1]
    assert held.ratio.low == pytest.approx(ratio * (1 - mine), rel=0.03)
    assert held.ratio.high == pytest.approx(ratio / (1 - other), rel=0.03)


def test_the_truth_is_within_what_is_allowed_for_shared_cores() -> None:
    """Hardly any of 1,000 pairs that are equal on separate cores, but not on shared ones, is decided."""
    dice, wrong = random.Random(2005), 0
    for _ in range(TRIALS):
        delays = [dice.uniform(0.0, 0.4) for _ in range(2)]  # the true effect of sharing on each step
        true = measured(dice, {DDP: 1 / (1 - delays[0]), PARALLEL: 1 / (1 - delays[1])})
        runs = [
            replace(
                run,
                planned=replace(run.planned, oversubscribed=True),
                launches=tuple(
                    replace(launch, cpu_share=delay + dice.uniform(0, 0.05)) for launch in run.launches
                ),
            )
            for run, delay in zip(true, delays, strict=True)
        ]
        wrong += decided(claim((DDP, PARALLEL)), runs).verdict == "holds"
    assert wrong / TRIALS <= 0.03
