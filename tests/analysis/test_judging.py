"""Each pair of a page has one judgement; findings have intervals that exclude what they deny."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from ddpbench.analysis.finding import Finding, FindingVerdict
from ddpbench.analysis.findings.choice import choices_of
from ddpbench.analysis.findings.claims import decided_claims, judged_by_claims
from ddpbench.analysis.findings.compared import findings
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.inputs import input_findings
from ddpbench.analysis.findings.precision import precision_findings
from ddpbench.analysis.findings.table import compared
from ddpbench.analysis.inputs import WAITED_LIMIT, input_groups
from ddpbench.analysis.precisions import precision_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.overlap import PARTS, Breakdown
from ddpbench.analysis.sentences import Sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import judged
from ddpbench.analysis.statistics.stats import shows_less, shows_more
from ddpbench.analysis.summary import DecidedClaim
from ddpbench.spec import Case
from tests.analysis.test_claim_verdicts import claim, measured, run_of
from tests.synthetic import case_of

SINGLE, DDP, PARALLEL = case_of("single", 1), case_of("ddp", 2), case_of("data_parallel", 2)
MASTER, ZERO = case_of("master", 2), case_of("zero1", 2)
HALF = replace(DDP, precision="bf16")
LOADED = replace(DDP, data="loader", loader_workers=1)
IN_MEMORY = replace(DDP, data="memory")
CASES = (SINGLE, DDP, PARALLEL, MASTER, ZERO, HALF, LOADED, IN_MEMORY)
_Said = tuple[frozenset[str], str]


def turned(ratio: Interval) -> Interval:
    assert ratio.low is not None
    assert ratio.high is not None
    return Interval(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def said_of(a: str, b: str, ratio: Interval | None, rounds: int = 8) -> Iterator[_Said]:
    """Yield the faster of two, or that they are equivalent, by the name of the first in order."""
    if ratio is None or ratio.low is None:
        return
    if a > b:
        a, b, ratio = b, a, turned(ratio)
    yield frozenset((a, b)), judged(ratio, rounds).verdict


def page(cases: Sequence[CaseRun], claims: Sequence[DecidedClaim]) -> Iterator[_Said]:
    """Yield every judgement of two cases on a page."""
    for one in claims:
        for held in one.pairs:
            yield from said_of(held.a, held.b, held.ratio)
    for message in (*findings(cases), *input_findings(cases), *precision_findings(cases)):
        if len(message.cases) == 2:
            yield from said_of(*message.cases, message.ratio)
    families = Families(cases)
    for a, b in itertools.permutations(cases, 2):
        if (family := families.judge(a, b)) is not None:
            yield from said_of(a.case_id, b.case_id, family.ratio)
    for member in (member for group in input_groups(cases) for member in group.members):
        if member.twin is not None and member.judged is not None:
            yield from said_of(member.run.case_id, member.twin.case_id, member.ratio)
    for group in precision_groups(cases):
        for run, found in group.others:
            yield from said_of(run.case_id, group.full.case_id, found.ratio)
    for choice in choices_of(cases):
        if choice.gain is not None:
            yield from said_of(choice.chosen.baseline_id, choice.chosen.case_id, choice.gain)
    for held in compared(cases):
        if held.topic in ("data", "precision"):
            yield from said_of(held.case_id, held.best_case_id, held.ratio)


def differing(pages: Sequence[Sequence[_Said]]) -> int:
    """Return on how many pages two places differ on two cases."""
    return sum(len(set(said)) > len({pair for pair, _ in said}) for said in pages)


def test_no_two_places_of_a_page_differ_on_two_cases() -> None:
    dice, with_rule, without = random.Random(5), [], []
    for _ in range(60):
        ratios: dict[Case, float] = {case: dice.choice((1.0, 1.02, 1.05)) for case in CASES}
        runs = measured(dice, ratios, noise=0.015)
        drawn = [dice.sample(CASES, 2) for _ in range(5)]
        pairs = [(a, b) for a, b in drawn]
        claims = decided_claims([claim(*pairs[:2]), claim(*pairs[2:4]), claim(pairs[4])], runs)
        with_rule.append(list(page(judged_by_claims(runs, claims), claims)))
        without.append(list(page(runs, claims)))
    assert differing(with_rule) == 0
    assert differing(without) > 5


def test_standings_follow_from_what_claims_decided() -> None:
    """A claim's one pair has a narrower interval than the family's six."""
    runs = measured(random.Random(3), {DDP: 1.0, MASTER: 1.022, ZERO: 1.0, PARALLEL: 1.0}, noise=0.01)
    claims = decided_claims([claim((DDP, MASTER))], runs)
    assert claims[0].verdict == "holds"
    for cases, verdict in ((runs, "cannot tell"), (judged_by_claims(runs, claims), "slower")):
        some = [run for run in cases if run.case in (DDP, MASTER)]
        assert Families(cases).standings(some)[MASTER.case_id].verdict == verdict


def test_all_claims_of_a_page_share_the_error() -> None:
    runs = measured(random.Random(1), {SINGLE: 1.0, DDP: 1.1, PARALLEL: 1.2})
    alone = decided_claims([claim((SINGLE, DDP))], runs)
    both = decided_claims([claim((SINGLE, DDP)), claim((SINGLE, PARALLEL)), claim((DDP, SINGLE))], runs)
    assert alone[0].comparisons == 1
    assert {one.comparisons for one in both} == {2}  # a pair that two claims name counts once
    first, last = alone[0].pairs[0].ratio, both[0].pairs[0].ratio
    assert first is not None
    assert last is not None
    assert last.low is not None
    assert first.low is not None
    assert last.low < first.low


def test_claims_are_seldom_wrong_however_many_there_are() -> None:
    dice, wrong, trials = random.Random(8), 0, 600
    for _ in range(trials):
        runs = measured(dice, dict.fromkeys(CASES[1:5], 1.0))
        pairs = [(a, b) for index, a in enumerate(CASES[1:5]) for b in CASES[1 : index + 1]]
        found = decided_claims([claim(pair) for pair in pairs], runs)
        wrong += any(
            shows_less(ratio, 1) or shows_more(ratio, 1) for one in found if (ratio := one.pairs[0].ratio)
        )
    assert wrong / trials <= 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5


@pytest.mark.parametrize(
    ("verdict", "ends"),
    [
        ("faster", (0.9, 1.0)),
        ("faster", (1.1, 1.2)),
        ("faster", (None, None)),
        ("slower", (1.0, 1.2)),
        ("slower", (0.8, 0.9)),
        ("equivalent", (None, None)),
    ],
)
def test_a_finding_whose_interval_holds_what_it_denies_is_none(
    verdict: FindingVerdict, ends: tuple[float | None, float | None]
) -> None:
    ratio = Interval(value=1.0, low=ends[0], high=ends[1])
    for kind in ("strategies", "bound", "buckets", "layouts", "links", "lead", "inputs", "precision"):
        with pytest.raises(ValueError, match="does not show"):
            Finding(kind=kind, text=Sentence(""), evidence="", verdict=verdict, ratio=ratio)


def waiting(shares: Sequence[float]) -> CaseRun:
    """Return a case with a loader and no twin, whose launches wait for these shares of a step."""
    parts = [dict.fromkeys(PARTS, 0.0) | {"data": one, "forward": 1 - one} for one in shares]
    mean = {name: sum(one[name] for one in parts) / len(parts) for name in PARTS}
    found = Breakdown(
        parts=mean,
        step_s=1.0,
        comm_s=0.0,
        exposed_s=0.0,
        overlapped_s=0.0,
        wait_s=0.0,
        queue_s=0.0,
        spans={},
        launches=len(parts),
        has_transfers=False,
        dropped_transfers=0,
        by_round=dict(enumerate(parts)),
    )
    return replace(run_of(LOADED, [0.01] * len(shares)), parts=found)


def test_who_may_wait_for_no_data_at_all_does_not_look_input_bound() -> None:
    unsure = [0.31, 0.0, 0.0, 0.0, 0.0]
    assert sum(unsure) / len(unsure) > WAITED_LIMIT
    for shares, looks in (
        (unsure, False),
        ([0.2], False),
        ([0.06, 0.061, 0.062], False),  # three launches have no interval of a median
        ([0.06, 0.061, 0.062, 0.063, 0.064], True),
        ([0.06, 0.04, 0.06, 0.06, 0.06], False),
    ):
        run = waiting(shares)
        (member,) = input_groups([run])[0].members
        assert (member.verdict == "looks input-bound") is looks
        assert len(input_findings([run])) == looks
