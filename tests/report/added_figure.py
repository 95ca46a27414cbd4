"""A section with a figure as a change may add it: `tests/test_extending.py` puts it among those of the
report.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.report.captions import captioned, fullest, label_of, marks_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.draw.rows import Groups, Point, grouped_rows, on_phone, rows_taken
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.words import launches_each

if TYPE_CHECKING:
    from ddpbench.report.draw.sheet import Sheet
    from ddpbench.report.rows import Row

MOST_CASES = 20
_UNIT = "samples/s"
_HEADING = "The rate of each case"


def section(rows: Sequence[Row]) -> Section | None:
    """Return a figure of the rates; None if no case has one."""
    rows = rows[:MOST_CASES]
    shown = [row for row in rows if row.ok and row.samples_per_s is not None]
    if not shown:
        return None
    missing = {row.case_id: f"{row.name} ({row.status})" for row in rows if row not in shown}
    words = f"Markers: rate ({launches_each(row.launches for row in shown)})."
    points = [
        Point(
            name=row.name,
            estimate=row.samples_per_s,
            launches=(),
            look=style.look(row.case),
            hollow=row.emulated,
            words=str(row.samples_per_s),
        )
        for row in shown
    ]
    groups: Groups = [("All cases", any(row.oversubscribed for row in shown), points)]
    table = Table(
        caption="Rates",
        columns=(Column("Case"), Column(_UNIT, number=True)),
        rows=tuple((Cell(text=row.name), Cell.estimate(row.samples_per_s)) for row in shown),
    )
    picture = Picture(
        file_name="rates",
        heading=_HEADING,
        caption=captioned(setting_of(fullest(shown)), [words, *marks_of(shown, missing)]),
        alt=f"Dot plot of samples/s of each case. {_HEADING}.",
        table=table,
        width_in=style.FULL_WIDTH_IN,
        height_in=0.85 + 0.3 * rows_taken(groups),
        paint=partial(_paint, groups=groups),
        **on_phone(groups, _UNIT),
        label=label_of(shown),
        missing=missing,
    )
    return Section(anchor="rates", title="Rates", question="How fast is each case?", pictures=(picture,))


def _paint(sheet: Sheet, *, groups: Groups) -> None:
    axes = sheet.axes(2.6, 0.5, sheet.width_in - 5.5, sheet.height_in - 0.6)
    grouped_rows(axes, groups, _UNIT)
