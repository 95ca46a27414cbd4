"""A verdict has one wording in tables, findings, figures and answers."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest

from ddpbench.analysis.results import Compared
from ddpbench.analysis.statistics.best import verdicts
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import (
    RESOLUTION,
    Standing,
    Verdict,
    is_faster,
    judged,
    longer,
    longer_or_shorter,
    plain,
    takes_longer,
)
from tests.folders import modules_of

ROOT = Path(__file__).parents[2]
OWN = ("equivalent within", "no significant difference")
"""Words of verdicts, which no other module writes."""


@pytest.mark.parametrize(
    ("ratio", "cell", "figure", "finding"),
    [
        (Interval(0.8, 0.75, 0.85), "faster", "25 % faster", "25 % [18, 33] faster"),
        (Interval(0.4, 0.38, 0.42), "faster", "2.5 times as fast", "2.5 [2.4, 2.6] times as fast"),
        (Interval(1.25, 1.2, 1.3), "slower", "25 % slower", "25 % [20, 30] slower"),
        (Interval(1.0, 0.99, 1.01), "equivalent", "equivalent within 2 %", "equivalent within 2 %"),
        (Interval(1.0, 0.95, 1.04), "cannot tell", "not told apart (up to 5.3 %)", "not told apart (up to 5.3 %)"),
        (Interval(1.0), "too few rounds", "too few rounds", "too few rounds"),
    ],
)  # fmt: skip
def test_a_judgement_has_the_words_of_its_verdict(
    ratio: Interval, cell: str, figure: str, finding: str
) -> None:
    found = judged(ratio, 5)
    assert (found.cell, found.phrase(bare=True), found.phrase()) == (cell, figure, finding)
    in_report = Compared(
        topic="precision", case_id="a", best_case_id="b", ratio=ratio, verdict=found.verdict
    ).judgement
    assert (in_report.cell, in_report.phrase()) == (cell, finding), "the report has the same words"


@pytest.mark.parametrize(("value", "longer", "faster"), [
    (1.5, "50.0 % longer than", "50.0 % faster than"),
    (2.0, "2.00 times as long as", "2.00 times as fast as"),
])  # fmt: skip
def test_steps_of_which_one_takes_twice_as_long_are_told_so(value: float, longer: str, faster: str) -> None:
    ratio = Interval(value)
    assert (takes_longer(ratio, than=True), is_faster(ratio, than=True)) == (longer, faster)


@pytest.mark.parametrize(
    ("ratio", "longer_words", "ratio_words"),
    [
        (Interval(1.11129, 1.00001, 1.23496), "11 % [just above 0, 23]", "1.1 [just above 1, 1.2]"),
        (Interval(1.0393, 1.0004, 1.0796), "3.93 % [0.04, 7.96]", "1.04 [just above 1, 1.08]"),
        (Interval(1.20, 1.019, 1.42), "20 % [1.9, 42]", "1.20 [1.02, 1.42]"),
        (Interval(1.20, 1.01999, 1.42), "20 % [just below 2, 42]", "1.20 [1.02, 1.42]"),
        (Interval(1.20, 1.02001, 1.42), "20 % [just above 2, 42]", "1.20 [1.02, 1.42]"),
        (Interval(1.0, 0.98001, 1.03), "0 % [just above \N{MINUS SIGN}2, 3]", "1.00 [0.98, 1.03]"),
    ],
)
def test_an_end_of_an_interval_that_is_close_to_no_difference_or_the_margin_stays_on_its_side(
    ratio: Interval, longer_words: str, ratio_words: str
) -> None:
    """So the verdict `slower` never stands next to an interval from 0, and no number has digits that mean nothing."""
    assert longer(ratio) == longer_words
    assert plain(ratio) == ratio_words


def test_a_standing_has_the_words_of_its_verdict() -> None:
    def words(verdict: str, high: float) -> tuple[str, str]:
        one = Standing(verdict=verdict, against="b", ratio=Interval(1.05, 1.0, high))  # type: ignore[arg-type]
        return one.cell("strategy"), one.phrase()

    assert words("best", 1.1) == ("best strategy", "best")
    assert words("as good", 1.016) == ("as good as the best strategy (at most 1.6 % longer)", "as good")
    assert words("slower", 1.1) == ("slower", "5.0 % longer")
    assert words("cannot tell", 1.1)[0] == "cannot tell: within 10 % of the fastest other strategy"
    assert words("too few", 1.1) == ("too few rounds to compare", "")


def written(text: str) -> list[str]:
    """Return the words of verdicts that a module writes, without its documentation."""
    strings = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    found = [node.value for node in strings if isinstance(node.value, str) and "\n" not in node.value]
    return [words for words in OWN for one in found if words in one and not one.endswith((".", "`"))]


def test_no_other_module_words_a_verdict() -> None:
    owner = ROOT / "ddpbench/analysis/statistics/judgement.py"
    paths = [*modules_of("analysis", "report")]
    assert written(owner.read_text("utf-8"))
    assert not {
        path: words for path in paths if path != owner and (words := written(path.read_text("utf-8")))
    }
    assert written('text = f"{a} against {b}: no significant difference"')


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Interval(1.11129, 1.000006, 1.23496), "unresolved"),
        (Interval(1.11129, 1.00099, 1.23496), "unresolved"),
        (Interval(1.11129, 1.00101, 1.23496), "slower"),
        (Interval(1.005, 1.0002, 1.0098), "equivalent"),
        (Interval(1.005, 1.002, 1.008), "slower"),
    ],
)
def test_no_verdict_rests_on_a_digit_that_is_not_printed(ratio: Interval, verdict: Verdict) -> None:
    """An interval from 6e-6 above 1 shows no difference, and neither does its reciprocal."""
    assert judged(ratio, 18).verdict == verdict
    opposite = "faster" if verdict == "slower" else verdict
    assert judged(ratio.reciprocal(), 18).verdict == opposite
    log, half = math.log(ratio.value), math.log(ratio.value / (ratio.low or 1.0))
    difference, width = np.array([[0.0, log], [-log, 0.0]]), np.array([[0.0, half], [half, 0.0]])
    _, _, slower = verdicts(difference, width)
    assert slower.tolist() == [verdict == "slower", False], "a family has the rule of a pair"


def test_a_smaller_margin_is_its_own_resolution() -> None:
    ratio = Interval(1.0006, 1.0004, 1.0008)
    assert judged(ratio, 9, margin=0.0003).beyond
    assert judged(ratio, 9, margin=RESOLUTION).verdict == "equivalent"


def test_a_difference_that_is_not_shown_has_no_bound_of_zero() -> None:
    assert longer_or_shorter(Interval(1.1, 0.98, 1.2)) == "20 % longer or 2.0 % shorter"
    assert longer_or_shorter(Interval(1.1, 1.0004, 1.2)) == "20 % longer"
    assert longer_or_shorter(Interval(0.9, 0.8, 0.9999)) == "20 % shorter"


def test_a_bound_on_an_undecided_difference_is_the_same_from_both_sides() -> None:
    """A step may be 4.7 % longer than the other's, and the other's 5.4 % longer: 1 / 0.949."""
    ratio = Interval(0.997, 0.949, 1.047)
    for one in (ratio, ratio.reciprocal()):
        assert Standing(verdict="cannot tell", against="b", ratio=one).apart == "5.4 %"
        assert judged(one, 9).phrase() == "not told apart (up to 5.4 %)"
    assert Standing(verdict="cannot tell", against="b", ratio=Interval(1.0)).apart == ""


def test_no_other_module_decides_whether_a_ratio_is_shown_to_differ_from_one() -> None:
    """Else a finding could rest on a digit that the answer does not count."""
    end = re.compile(r"(?<![<>=] )\b(low|high)( or [\d.a-z]+)?\)? *[<>]=? *1(\.0)?(?![\d.e<]| *[+/*-])")
    for planted in ("if ratio.low > 1:", "(a.ratio.low or 0.0) <= 1]", "gain.high < 1", "one.low >= 1.0"):
        assert end.search(planted)
    analysis = ROOT / "ddpbench" / "analysis"
    modules = (
        *(analysis / "findings").rglob("*.py"),
        *analysis.glob("*.py"),
        analysis / "statistics" / "best.py",
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in modules
        for line in path.read_text().splitlines()
        if end.search(line)
    ]
    assert found == []
