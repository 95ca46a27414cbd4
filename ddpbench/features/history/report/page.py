"""Write a history as one HTML page, styled like a report: a headline, a table, and a figure of each case."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddpbench.features.history.analysis import CaseHistory, History
from ddpbench.features.history.analysis.reading import started_utc
from ddpbench.features.history.analysis.wording import (
    headline,
    place_words,
    places,
    remarks,
    runs_words,
    to_json,
    verdict_words,
)
from ddpbench.features.history.report.picture import HOW_TO_READ, case_picture
from ddpbench.helper_process import for_report
from ddpbench.records.outputs import write_output
from ddpbench.report.draw.canvas import DrawnPicture
from ddpbench.report.draw.painter import Painter
from ddpbench.report.embedded import Embedded, TableCounter, data_address, with_pictures
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.templates import environment
from ddpbench.report.words import moment
from ddpbench.units import counted
from ddpbench.version import VERSION

MOST_FIGURES = 24
"""Number of figures on a page; cases with changes come first. More would make the page slow to write and to read."""


def history_page(history: History) -> str:
    """Return a history's page as HTML. It loads nothing, and all text from runs is escaped."""
    changed = history.changed
    ordered = [*changed, *(case for case in history.cases if case.measured and not case.changes)]
    drawn = ordered[:MOST_FIGURES]
    numbers = TableCounter()
    overview = numbers.sure(_cases_table(history, {id(case): number for number, case in enumerate(drawn, 1)}))
    figures, images = _figures(history, drawn, numbers)
    html = (
        environment(Path(__file__).parent)
        .get_template("history.html")
        .render(
            title=f"History of {counted(len(history.sides), 'run')} \N{MIDDLE DOT} ddpbench",
            headline=headline(history),
            cases=overview,
            places=list(map(place_words, places(history))),
            how_to_read=HOW_TO_READ,
            figures=figures,
            not_drawn=_not_drawn(ordered[MOST_FIGURES:]),
            remarks=remarks(history),
            runs=numbers.sure(_runs_table(history)),
            json=data_address("application/json", json.dumps(to_json(history), indent=1)),
            version=VERSION,
        )
    )
    return with_pictures(html, images)


def write_history(history: History, path: Path) -> None:
    """Write a history's page.

    Raises:
        OutputError: the page cannot be written.
    """
    write_output(path, history_page(history))


def _figures(
    history: History, drawn: Sequence[CaseHistory], numbers: TableCounter
) -> tuple[list[Embedded], list[DrawnPicture]]:
    pictures = [
        replace(picture, file_name=f"{picture.file_name}-{number}")
        for number, picture in enumerate((case_picture(history, case) for case in drawn), start=1)
    ]
    with for_report(len(pictures)) as others:
        painter = Painter(others)
        painter.start(pictures)
        images = painter.drawn()
    embedded = [
        Embedded(picture=picture, number=number, table=numbers.sure(picture.table), shared=())
        for number, picture in enumerate(pictures, start=1)
    ]
    return embedded, images


def _not_drawn(cases: Sequence[CaseHistory]) -> str:
    if not cases:
        return ""
    return f"Not drawn, to keep the page readable: {counted(len(cases), 'more case')}; the table has them."


def _cases_table(history: History, figures: Mapping[int, int]) -> Table:
    return Table(
        caption="Cases over the runs; step times of the latest run, with 95 % intervals over that run's launches.",
        columns=(
            Column("Case"),
            Column("Runs", number=True),
            Column("Latest, ms", number=True),
            Column("Change-points"),
        ),
        rows=tuple(
            (
                Cell(text=case.label, link=f"#figure-{figures[id(case)]}" if id(case) in figures else ""),
                Cell(text=runs_words(case), number=True),
                _latest(case),
                Cell(text=verdict_words(history, case), strong=bool(case.changes)),
            )
            for case in history.cases
        ),
        sortable=False,
        mixed=True,  # cases differ in size, and each is rounded separately
    )


def _latest(case: CaseHistory) -> Cell:
    step = case.measured[-1].step if case.measured else None
    return Cell.estimate(None if step is None else step.scaled(1e3))


def _runs_table(history: History) -> Table:
    return Table(
        caption="The runs, in the order of the figures.",
        columns=(Column("Run"), Column("Started"), Column("Commit"), Column("ddpbench"), Column("torch")),
        rows=tuple(
            tuple(
                Cell(text=text)
                for text in (
                    side.name,
                    moment(started_utc(side)),
                    side.commit,
                    str(context.get("ddpbench_version") or ""),
                    str(side.identity.get("torch") or ""),
                )
            )
            for side in history.sides
            for context in [side.machine.get("context", {})]
        ),
        sortable=False,
    )
