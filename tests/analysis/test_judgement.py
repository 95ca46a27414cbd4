"""A verdict has one wording in tables, findings, figures and answers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ddpbench.analysis.results import Compared
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import Standing, is_faster, judged, longer, plain, takes_longer
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
    assert words("cannot tell", 1.1)[0] == "cannot tell: at most 10 % longer than the fastest other strategy"
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
