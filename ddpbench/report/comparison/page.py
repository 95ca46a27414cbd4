"""Write the comparison of two runs as an HTML page with the result, a table, and both runs' launches."""

from __future__ import annotations

import json
from pathlib import Path

from ddpbench.analysis.regression import Changes
from ddpbench.analysis.regression.wording import HEADS, headline, remarks, rows, settings_sentence, to_json
from ddpbench.records.outputs import write_output
from ddpbench.report.comparison.picture import launches_picture
from ddpbench.report.draw.canvas import draw
from ddpbench.report.embedded import Embedded, TableCounter, data_address, with_pictures
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.templates import environment
from ddpbench.version import VERSION

_NUMBERS = range(1, 5)
"""Indexes in `HEADS` of the columns that hold numbers."""


def comparison_page(changes: Changes) -> str:
    """Return the comparison of two runs as a self-contained HTML page. Text from the runs is escaped."""
    title = headline(changes)
    numbers = TableCounter()
    cases = numbers.sure(_cases_table(changes))
    picture = launches_picture(changes, title)
    figure = None
    if picture is not None:
        figure = Embedded(picture=picture, number=1, table=numbers.sure(picture.table), shared=())
    html = (
        environment(Path(__file__).parent)
        .get_template("comparison.html")
        .render(
            title=f"{changes.base.name} against {changes.new.name} \N{MIDDLE DOT} ddpbench",
            headline=title,
            base=changes.base,
            new=changes.new,
            settings=settings_sentence(changes),
            cases=cases,
            remarks=remarks(changes),
            figure=figure,
            json=data_address("application/json", json.dumps(to_json(changes), indent=1)),
            version=VERSION,
        )
    )
    return with_pictures(html, [draw(picture)] if picture is not None else [])


def write_comparison(changes: Changes, path: Path) -> None:
    """Write the HTML page that compares two runs to `path`.

    Raises:
        OutputError: the file cannot be written.
    """
    write_output(path, comparison_page(changes))


def _cases_table(changes: Changes) -> Table:
    return Table(
        caption="Step times of both sides. All verdicts together are right with 95 % confidence.",
        columns=tuple(Column(head, number=place in _NUMBERS) for place, head in enumerate(HEADS)),
        rows=tuple(
            tuple(Cell(text=text, number=place in _NUMBERS) for place, text in enumerate(row))
            for row in rows(changes)
        ),
        sortable=False,
        mixed=True,  # cases differ in size, and each is rounded separately
    )
