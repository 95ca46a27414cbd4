"""The page of an ordinary sweep is short: words that are seen before anything is unfolded."""

from __future__ import annotations

from pathlib import Path

from ddpbench.analysis import summarize
from ddpbench.report import write_report
from tests.kept import unpacked
from tests.report.visible import visible_words

MOST_WORDS = 1_100


def test_folded_words_and_figures_do_not_count() -> None:
    html = (
        "<head><title>no</title></head><p>one, <b>two</b> · 3</p><svg><text>no</text></svg>"
        "<details><summary>four</summary><p>no</p><details open><summary>no</summary>no</details></details>"
        "<details open><summary>five</summary>six<details><summary>seven</summary>no</details></details>"
    )
    assert visible_words(html) == ["one,", "two", "3", "four", "five", "six", "seven"]


def test_an_ordinary_sweeps_page_has_few_words(tmp_path: Path) -> None:
    run = unpacked("quick-two-cores-gloo", tmp_path)
    html = write_report(summarize(run), run).read_text(encoding="utf-8")
    assert len(visible_words(html)) <= MOST_WORDS
