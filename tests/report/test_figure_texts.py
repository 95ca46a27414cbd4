"""The rule for the texts of figures: a title of at most 14 words, and two lines beneath, in every section."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.sentences import but
from ddpbench.analysis.summary import RunSummary
from ddpbench.picture_formats import ONLY_PNG
from ddpbench.records import RunDir
from ddpbench.report import page
from ddpbench.report.draw.canvas import note_characters, wrapped
from ddpbench.report.embedded import Embedded, NumberedTable
from ddpbench.report.figure_texts import MOST_LINES, MOST_WORDS, beneath, cut, first_short, fitted, words_in
from ddpbench.report.outside import dressed
from ddpbench.report.parts import Picture, Table
from ddpbench.report.rows import rows_of
from tests.emulated import write_emulated
from tests.report.handmade import bucket_comparisons, handmade_summary
from tests.report.test_long_names import beside_training, write_losses, write_recovery
from tests.synthetic import write_everything, write_run

KEPT = sorted(path.parent for path in (Path(__file__).parents[2] / "reports").glob("*/plan.json"))


def pictures_of(summary: RunSummary) -> list[tuple[Picture, Picture]]:
    """Return each figure as its section makes it, and as its files show it."""
    rows = rows_of(summary)
    made = [picture for section in page.sections_of(summary, rows) for picture in section.pictures]
    return list(zip(made, dressed(summary, rows, made, ONLY_PNG), strict=True))


def check(summary: RunSummary) -> None:
    found = pictures_of(summary)
    assert found
    for made, shown in found:
        assert words_in(made.heading) <= MOST_WORDS, f"{made.file_name}: {made.heading}"
        width = note_characters(shown.width_in)
        assert len(wrapped(shown.caption, width)) <= MOST_LINES, shown.caption
        assert len(wrapped(shown.subtitle, width)) <= MOST_LINES, shown.subtitle
        assert shown.caption, f"{made.file_name}: nothing beneath says what is drawn"
        assert made.heading in made.alt or made.heading[1:] in made.alt
        embedded = Embedded(
            picture=made, number=1, table=NumberedTable(number=1, table=made.table), shared=()
        )
        assert len(wrapped(embedded.caption, width)) <= MOST_LINES, embedded.caption
        whole = f"{embedded.caption} {embedded.reading}".split()
        stated = {*made.label, made.group}
        assert [word for word in but(made.caption, stated).split() if word not in whole] == [], (
            "nothing is lost"
        )


@pytest.mark.parametrize("run", KEPT, ids=lambda path: path.name)
def test_titles_and_captions_of_a_kept_run(run: Path) -> None:
    check(summarize(RunDir(run)))


def test_titles_and_captions_of_synthetic_runs(tmp_path: Path) -> None:
    check(summarize(write_everything(tmp_path / "whole")))
    check(summarize(write_emulated(tmp_path / "emulated", dilation=10.0, shrink=4)))
    check(handmade_summary(comparisons=bucket_comparisons()))


def test_titles_of_cases_with_long_names(tmp_path: Path) -> None:
    """Names of many settings leave less room for the finding, and never lengthen the title."""
    check(summarize(write_run(tmp_path / "beside", beside_training(), rounds=3, blocks=2, steps=4)))
    check(summarize(write_recovery(tmp_path / "recovery")))
    check(summarize(write_losses(tmp_path / "losses")))


def test_numbers_in_a_title_are_no_words() -> None:
    example = "At 16 nodes the ring trains 5.3 times as fast as one rank, a master 0.6 times"
    assert words_in(example) == MOST_WORDS
    assert words_in("At 2 ranks: 0.675 [0.66, 0.69] · 1,024") == 2
    assert first_short(f"{example} or more", "less", "least") == "less"
    assert first_short(example, "less") == example
    assert first_short(f"{example} or more", f"{example} or less").endswith("or less"), "the last, if none is"


def picture(**texts: str) -> Picture:
    return Picture(
        file_name="a",
        **{"heading": "A finding", "caption": "", "alt": "", **texts},
        table=Table(caption="", columns=(), rows=()),
        width_in=7.2,
        height_in=3.0,
        paint=lambda sheet: None,
        missing={},
    )


def test_a_title_that_is_too_long_is_cut_and_told_whole_in_the_fold() -> None:
    long = "A case " + "with a very long name, " * 6 + "is slow"
    found = fitted(picture(heading=long, caption="Whiskers: intervals."))
    assert words_in(found.heading) == MOST_WORDS
    assert found.heading.endswith("\N{HORIZONTAL ELLIPSIS}")
    assert found.reading == f"{long}."
    assert cut("A finding") == ("A finding", "")


def test_whole_sentences_stand_beneath_in_their_order() -> None:
    sentences = [
        f"Sentence {number} says what some of the marks are, at e.g. 0.5 of a rank." for number in range(9)
    ]
    shown, rest = beneath(" ".join(sentences), 7.2)
    assert shown
    assert rest
    assert f"{shown} {rest}" == " ".join(sentences)
    assert shown.endswith(".")
    assert len(wrapped(shown, note_characters(7.2))) <= MOST_LINES
    once = fitted(picture(caption=" ".join(sentences)))
    assert fitted(once) == once, "a figure may pass twice"


def test_the_fold_keeps_what_a_section_puts_there() -> None:
    found = fitted(replace(picture(caption="Beneath."), reading="In the fold."))
    assert (found.caption, found.reading) == ("Beneath.", "In the fold.")
