"""The phrases of effects that decided claims show, and what claims answer to a question."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from ddpbench.analysis import Finding, summarize
from ddpbench.analysis.findings.all_claims import claims_answer
from ddpbench.analysis.findings.effects import ClaimedEffect, Opening, PairSide, effects_of, opening_of
from ddpbench.analysis.findings.options import option_answer
from ddpbench.analysis.judging import joint_rate_ratio, judge_pair, rate_ratio
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.analysis.summary import ClaimVerdict, DecidedClaim, HeldPair, PairVerdict
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, Case
from ddpbench.spec.claims import PlannedClaim
from tests.synthetic import MS, RankLaunch, case_of, processes_of, write_launch, write_plan, write_sessions

SINGLE, DDP, MASTER = case_of("single", 1), case_of("ddp", 2), case_of("master", 2)
MLP = {"workload": "mlp:small"}
ONE, OTHER, RIVAL = case_of("single", 1, **MLP), case_of("ddp", 2, **MLP), case_of("master", 2, **MLP)
FOUR, FOUR_MASTER = case_of("ddp", 4), case_of("master", 4)


def claim(says: str, *pairs: tuple[Case, Case], **more: Any) -> PlannedClaim:
    """Return the claim that the first case of each pair is faster, unless `more` says otherwise."""
    ids = tuple((a.case_id, b.case_id) for a, b in pairs)
    return PlannedClaim(**{"says": says, "kind": "faster", "pairs": ids, **more})


def answers(
    path: Path,
    step_ms: Mapping[Case, float],
    *claims: PlannedClaim,
    noise: Mapping[Case, float] | float = 0.002,
) -> tuple[Finding, ...]:
    """Return the answer of a run with these claims and step times."""
    run = RunDir(path / "run")
    write_plan(run, list(step_ms), Budget(rounds_min=6, rounds_max=6), claims=claims)
    dice = random.Random(1)
    for number in range(6):
        drift = 1 + dice.uniform(-0.2, 0.2)
        for case, step in step_ms.items():
            width = noise if isinstance(noise, float) else noise.get(case, 0.002)
            taken = int(step * MS * drift * (1 + dice.gauss(0, width)))
            count = processes_of(case)
            one = RankLaunch(blocks=[[taken] * 10], samples_per_step=case.global_batch // count)
            write_launch(run, case, number, [one] * count)
    write_sessions(run)
    return summarize(run).conclusions.answer


def first(path: Path, step_ms: Mapping[Case, float], *claims: PlannedClaim, **more: Any) -> str:
    return answers(path, step_ms, *claims, **more)[0].text


def test_a_claim_that_holds_is_answered_with_its_effect_and_the_count_stands_beneath(tmp_path: Path) -> None:
    steps = {SINGLE: 10, DDP: 12, MASTER: 15}
    said = answers(tmp_path / "plain", steps, claim("DDP wins", (DDP, MASTER)))[0]
    assert said.text.startswith("25.")
    assert said.text.endswith("] faster than master is DDP.")
    assert said.beneath[0] == "the claim holds"
    said = answers(tmp_path / "yes", steps, claim("DDP wins", (DDP, MASTER), answers="yes"))[0]
    assert said.text.startswith("Yes: DDP is 25.")
    assert said.text.endswith("] faster than master.")


def test_a_refuted_pair_answers_no_and_comes_first(tmp_path: Path) -> None:
    steps = {SINGLE: 10, DDP: 12, MASTER: 36, ONE: 10, OTHER: 15, RIVAL: 12}
    wins = claim("DDP wins", (DDP, MASTER), (OTHER, RIVAL), answers="yes")
    again = claim("DDP is much faster", (DDP, MASTER), margin=0.25)
    said = answers(tmp_path, steps, wins, again)[0]
    start, _, end = said.text.partition("; ")
    assert start.startswith("No: master is 25.")
    assert start.endswith("] faster than DDP for mlp:small")
    assert end.startswith("DDP is 3.0")
    assert end.endswith("] times as fast as master for gpt:nano."), "each pair once"
    assert said.beneath[0] == "1 of 2 claims holds, 1 holds in part"


def test_without_an_answer_a_claim_that_holds_in_part_depends(tmp_path: Path) -> None:
    steps = {SINGLE: 10, DDP: 12, MASTER: 36, ONE: 10, OTHER: 15, RIVAL: 12}
    text = first(tmp_path, steps, claim("DDP wins", (DDP, MASTER), (OTHER, RIVAL)))
    assert text.startswith("It depends: DDP is 3.0")
    assert "; master is 25." in text
    assert text.endswith("] faster than DDP for mlp:small.")


def test_an_undecided_pair_is_said_unless_another_claim_decides_it(tmp_path: Path) -> None:
    steps = {SINGLE: 10, DDP: 12, MASTER: 24, ONE: 10, OTHER: 12, RIVAL: 12.02}
    wins = claim("DDP wins", (DDP, MASTER), (OTHER, RIVAL))
    loud = {OTHER: 0.02, RIVAL: 0.02}
    text = first(tmp_path / "open", steps, wins, noise=loud)
    assert text.endswith("; DDP and master cannot be told apart for mlp:small."), text
    equal = claim("they are equal", (OTHER, RIVAL), kind="as fast", margin=0.2)
    text = first(tmp_path / "equal", steps, wins, equal, noise=loud)
    assert "told apart" not in text
    assert "; steps of DDP and master differ by " in text


def test_settings_of_one_strategy_are_told_with_its_name(tmp_path: Path) -> None:
    small, large = (case_of("ddp", 2, bucket_cap_mb=cap) for cap in (1.0, 25.0))
    text = first(
        tmp_path, {SINGLE: 10, small: 15, large: 12}, claim("large wins", (large, small), answers="yes")
    )
    assert text.startswith("Yes: DDP is 25.")
    assert text.endswith("] faster with 25 MiB buckets than with 1 MiB buckets."), text


def test_growth_is_a_factor_from_few_ranks_to_many(tmp_path: Path) -> None:
    steps = {SINGLE: 10, DDP: 12, FOUR: 18, MASTER: 12, FOUR_MASTER: 36}
    slower = claim("a master's step grows", (MASTER, FOUR_MASTER), of="step time", answers="yes")
    ring = claim(
        "a ring's step hardly does", (FOUR, DDP), of="step time", kind="as fast", margin=1.0, answers="yes"
    )
    text = first(tmp_path / "yes", steps, ring, slower)
    assert text.startswith("Yes: from 2 to 4 ranks, a step takes 1.5")
    assert "] times as long with DDP; 3.0" in text
    assert text.endswith("] times with master."), "over the same ranks"
    bare = [replace(one, answers=None) for one in (slower, ring)]
    assert first(tmp_path / "number", steps, *bare).startswith("3.0")


def test_steps_of_several_strategies_are_compared_by_length(tmp_path: Path) -> None:
    text = first(tmp_path, {SINGLE: 10, DDP: 12, MASTER: 36}, claim("DDP", (DDP, MASTER), of="step time"))
    assert text.startswith("3.0")
    assert text.endswith("] times as long: a step of master, compared with DDP.")


def test_what_is_slower_than_one_rank_everywhere_is_said_in_the_answer(tmp_path: Path) -> None:
    text = first(tmp_path, {SINGLE: 10, DDP: 40, MASTER: 80}, claim("DDP wins", (DDP, MASTER), answers="yes"))
    assert text.endswith("; all are slower than one rank (at least 1.9 times in every case)."), text
    said = first(
        tmp_path / "b", {SINGLE: 10, DDP: 12, MASTER: 80}, claim("DDP wins", (DDP, MASTER), answers="yes")
    )
    assert "one rank" not in said, "DDP is faster than one rank"


def test_an_option_that_claims_compare_is_answered_with_its_best_value(tmp_path: Path) -> None:
    def parts(count: int) -> Case:
        return case_of("pipeline", 2, options_json=f'{{"microbatches":{count}}}')

    one, two, four, eight = (parts(count) for count in (1, 2, 4, 8))
    small = claim("splitting helps", (two, one), (four, one), (eight, one))
    steps = {SINGLE: 10, DDP: 12, one: 30, two: 20, four: 16, eight: 18}
    said = answers(tmp_path / "best", steps, small)[0]
    assert said.text.startswith("4 microbatches: pipeline takes 33."), said.text
    assert "] longer than DDP and trains 25." in said.text
    assert said.text.endswith("] faster than one rank.")
    assert re.fullmatch(
        r"pipeline with microbatches=1 takes 50.\d % \[.*\] longer than one rank", said.beneath[0]
    )
    assert said.beneath[1] == "the claim holds"
    said = answers(tmp_path / "tied", {**steps, eight: 16.01}, small)[0]
    assert said.text.startswith("4 or 8 microbatches (equivalent within 2 %): with "), said.text
    loud = answers(tmp_path / "loud", {**steps, one: 20.1, eight: 16.2}, small, noise=0.01)[0]
    assert re.match(r"4 or 8 microbatches \(cannot tell: within [\d.]+ %\): with 4, ", loud.text), loud.text
    assert loud.beneath[1] == "the claim holds in part"
    assert re.fullmatch(
        r"pipeline with microbatches=1: no cost over one rank is shown, at most [\d.]+ %", loud.beneath[0]
    ), loud.beneath
    gains = answers(tmp_path / "gains", {**steps, one: 18}, small)[0]
    assert re.fullmatch(
        r"pipeline with microbatches=1 trains 1\d.\d % \[.*\] faster than one rank", gains.beneath[0]
    )
    ahead = answers(tmp_path / "ahead", {**steps, DDP: 18}, small)[0]
    assert re.search(r"pipeline is 12\..* faster than DDP and trains 25\.", ahead.text), ahead.text
    text = first(
        tmp_path / "slow", {case: 10 if case is SINGLE else 3 * step for case, step in steps.items()}, small
    )
    assert "microbatches:" not in text, "one rank is faster"
    run = RunDir(tmp_path / "best" / "run")
    runs, claims = read_cases(run, read_plan(run)), summarize(run).conclusions.claims
    assert option_answer(runs, claims) is not None
    crowded = [
        replace(each, planned=replace(each.planned, oversubscribed=each.case.strategy == "pipeline"))
        for each in runs
    ]
    assert option_answer(crowded, claims) is None, "more ranks than cores"


@pytest.mark.parametrize(
    ("claims", "opening"),
    [
        ([("holds", "yes", ()), ("cannot tell", None, ())], "yes"),
        ([("holds", "no", ())], "no"),
        ([("holds", "yes", ()), ("does not hold", "no", ("does not hold",))], "yes"),
        ([("holds in part", "yes", ("holds", "does not hold"))], "no"),
        ([("holds in part", "yes", ("holds", "cannot tell"))], ""),
        ([("holds", "yes", ()), ("does not hold", "yes", ("does not hold",))], "it depends"),
        ([("holds", "yes", ()), ("cannot tell", "yes", ("cannot tell",))], ""),
        ([("cannot tell", "yes", ("cannot tell",))], ""),
        ([("holds", None, ()), ("does not hold", None, ("does not hold",))], ""),
        ([("holds in part", None, ("holds", "does not hold"))], "it depends"),
    ],
)
def test_claims_answer_yes_or_no_only_if_all_of_them_do(
    claims: Sequence[tuple[ClaimVerdict, Any, Sequence[PairVerdict]]], opening: Opening
) -> None:
    decided = [
        DecidedClaim(
            says="a",
            source="",
            answers=answer,
            kind="faster",
            margin=0.0,
            of="throughput",
            verdict=verdict,
            pairs=tuple(
                HeldPair(a="a", b="b", a_name="a", b_name="b", place="", verdict=pair) for pair in pairs
            ),
            comparisons=1,
        )
        for verdict, answer, pairs in claims
    ]
    assert opening_of(decided) == opening


def test_the_first_layout_of_an_answer_says_what_it_counts(tmp_path: Path) -> None:
    def on(strategy: str, nodes: int) -> Case:
        return case_of(strategy, 4, fabric="1 Gbit/s", nodes=nodes, ranks_per_node=4 // nodes)

    ddp, master = ([on(strategy, nodes) for nodes in (1, 4)] for strategy in ("ddp", "master"))
    steps = {SINGLE: 10, ddp[0]: 12, ddp[1]: 12.01, master[0]: 12, master[1]: 36}
    one_node = claim("one node wins", (master[0], master[1]), (ddp[0], ddp[1]))
    equal = claim("equal for DDP", (ddp[1], ddp[0]), kind="as fast", margin=0.05)
    text = first(tmp_path, steps, one_node, equal)
    assert text.startswith("It depends: master is 3.0")
    assert "] times as fast on 1 node x 4 ranks as on 4 x 1; ring (DDP) differs by at most " in text


def effect(common: str, fast: str, slow: str, kind: Literal["faster", "equal"] = "faster") -> ClaimedEffect:
    """Return an effect between two settings of the strategy `common`."""
    ratio = Interval(2.0, 1.9, 2.1) if kind == "faster" else Interval(1.0, 0.8, 1.02)
    sides = [PairSide(words=words, spelled=words) for words in (fast, slow)]
    return ClaimedEffect(
        pair=frozenset((fast, slow)), kind=kind, ratio=ratio, fast=sides[0], slow=sides[1], common=common
    )


def test_a_second_effect_is_shortened_only_if_the_same_setting_is_faster() -> None:
    first, alike, reverse = effect("master", "a", "b"), effect("ring", "a", "b"), effect("ring", "b", "a")
    assert alike.text(first) == "ring 2.0 [1.9, 2.1] times as fast"
    assert reverse.text(first) == "ring is 2.0 [1.9, 2.1] times as fast with b as with a"
    assert alike.text(effect("master", "a", "b", "equal")) == alike.text()


def test_settings_that_are_equal_differ_by_at_most_the_further_end_of_the_interval() -> None:
    """Steps with `b` may take 25 % longer: 1 / 0.8."""
    assert (
        effect("ring", "b", "a", "equal").text(effect("master", "a", "b")) == "ring differs by at most 25 %"
    )


def held(a: str, b: str, verdict: PairVerdict) -> HeldPair:
    return HeldPair(a=a, b=b, a_name=a, b_name=b, place="", verdict=verdict)


def decided(
    kind: Literal["faster", "as fast"], verdict: ClaimVerdict, *pairs: HeldPair, answers: Any = None
) -> DecidedClaim:
    return DecidedClaim(
        says="a",
        source="",
        answers=answers,
        kind=kind,
        margin=0.0,
        of="throughput",
        verdict=verdict,
        pairs=pairs,
        comparisons=1,
    )


def test_undecided_pairs_do_not_make_the_answer_depend() -> None:
    shown = decided("faster", "holds", held("a", "b", "holds"), answers="yes")
    unsure = decided("faster", "cannot tell", held("c", "d", "cannot tell"), answers="yes")
    elsewhere = decided("faster", "does not hold", held("e", "f", "does not hold"))
    assert opening_of([shown, unsure, elsewhere]) == "", "a claim that is not on the question"
    part = decided("faster", "holds in part", held("a", "b", "holds"), held("c", "d", "cannot tell"))
    assert opening_of([part]) == ""
    assert opening_of([part, decided("as fast", "holds", held("e", "f", "holds"))]) == "", (
        "another pair is equal"
    )
    assert opening_of([part, decided("as fast", "holds", held("d", "c", "holds"))]) == "it depends"
    refuted = decided("faster", "does not hold", held("c", "d", "does not hold"), answers="yes")
    assert opening_of([shown, refuted]) == "it depends"


def test_a_case_that_is_compared_with_several_comes_first_with_each_of_them(tmp_path: Path) -> None:
    """Each number stands next to the case that it is compared with: FSDP is not 2.5 times as fast as DDP."""

    def hybrid(strategy: str, replicas: int) -> Case:
        return case_of(strategy, 4, options_json=f'{{"replicas":{replicas}}}')

    fsdp, pipeline = ([hybrid(name, count) for count in (2, 1)] for name in ("fsdp", "pipeline"))
    steps = {SINGLE: 10, FOUR: 15, fsdp[0]: 12, fsdp[1]: 30, pipeline[0]: 13, pipeline[1]: 20}
    claims = [
        claim(str(number), pair, answers="yes")
        for number, pair in enumerate([tuple(fsdp), tuple(pipeline), (fsdp[0], FOUR)])
    ]
    text = first(tmp_path, steps, *claims)
    amounts = r"2[45]\.\d % \[[\d., ]+\]", r"2\.5\d* \[[\d., ]+\] times", r"5\d\.\d % \[[\d., ]+\]"
    over_ddp, over_one, of_pipeline = amounts
    assert re.fullmatch(
        rf"Yes: FSDP with replicas=2 \(hybrid\) is {over_ddp} faster than DDP and {over_one} as fast as "
        rf"with replicas=1 \(pipeline {of_pipeline} faster\)\.",
        text,
    ), text
    text = first(tmp_path / "two", steps, *claims[::2])
    assert "replicas=1" in text
    assert "(" not in text.partition("(hybrid)")[2]


def test_two_strategies_growth_is_over_the_same_ranks_where_it_was_measured(tmp_path: Path) -> None:
    """A master's step from 2 to 8 ranks says nothing next to a ring's from 2 to 4."""
    eight = case_of("master", 8)
    steps = {SINGLE: 10, DDP: 12, FOUR: 13.2, MASTER: 12, FOUR_MASTER: 36, eight: 96}
    slower = claim("a master's step grows", (MASTER, eight), of="step time", answers="yes")
    ring = claim(
        "a ring's hardly does", (FOUR, DDP), of="step time", kind="as fast", margin=1.0, answers="yes"
    )
    said = answers(tmp_path / "equal", steps, slower, ring)[0]
    number = r"\d\.\d+ \[[\d., ]+\]"
    assert re.fullmatch(
        rf"Yes: from 2 to 4 ranks, a step takes {number} times as long with master; {number} times with DDP\.",
        said.text,
    ), said.text
    assert said.text.startswith("Yes: from 2 to 4 ranks, a step takes 3.0")
    assert re.fullmatch(
        rf"from 2 to 8 ranks, a step takes {number} times as long with master", said.beneath[0]
    )
    assert said.beneath[1] == "2 of 2 claims hold"
    del steps[FOUR_MASTER]
    text = first(tmp_path / "unlike", steps, slower, ring)
    assert text.startswith("Yes: from 2 to 8 ranks, "), "it was not measured"
    assert text.endswith(" times with DDP from 2 to 4.")


def test_claims_on_cases_that_are_not_given_have_no_effect() -> None:
    ratio = Interval(0.5, 0.4, 0.6)
    one = decided("faster", "holds", replace(held("a", "b", "holds"), ratio=ratio, rounds=9))
    text = Finding(kind="claim", text=sentence("a is faster"), evidence="claims", verdict="holds")
    assert claims_answer([one], [text]) == text
    assert effects_of([one], ()) == []


def test_a_bound_on_all_cases_is_joint_also_where_claims_have_fewer_comparisons(tmp_path: Path) -> None:
    """A claim's interval that is corrected for one comparison is too narrow to be one of three."""
    steps = {SINGLE: 10, DDP: 40, MASTER: 80, FOUR: 90}
    said = answers(tmp_path, steps, claim("one rank is faster", (SINGLE, DDP), answers="yes"), noise=0.02)
    run = RunDir(tmp_path / "run")
    cases = {one.case: one for one in read_cases(run, read_plan(run))}
    base, ddp = cases[SINGLE], cases[DDP]
    alone = judge_pair(ddp, base)
    assert alone is not None
    narrow = replace(ddp, claimed={base.case_id: alone})
    of_three = rate_ratio(ddp, base, ALPHA / 3)
    assert joint_rate_ratio(narrow, base, 3) == of_three == joint_rate_ratio(ddp, base, 3)
    assert rate_ratio(narrow, base, ALPHA / 3) != of_three
    wide = replace(alone, ratio=Interval(4.0, 1.1, 9.0), comparisons=3)
    assert joint_rate_ratio(replace(ddp, claimed={base.case_id: wide}), base, 3) == Interval(
        1 / 4, 1 / 9, 1 / 1.1
    )
    least = min(
        found.low
        for case in (DDP, MASTER, FOUR)
        if (found := rate_ratio(base, cases[case], ALPHA / 3)) is not None and found.low is not None
    )
    bound = re.search(r"at least ([\d.]+) times in every case", said[0].line)
    assert bound is not None, said[0].line
    assert least - 0.1 < float(bound[1]) <= least
