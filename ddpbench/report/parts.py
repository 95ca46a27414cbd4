"""What a page is made of: sections, figures not yet drawn, tables. Plain values; no HTML and no matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddpbench.analysis.statistics.interval import Interval, decimals_of
from ddpbench.report.words import milliseconds
from ddpbench.wanted import ONLY_PNG, Wanted

if TYPE_CHECKING:
    from ddpbench.report.draw.sheet import Sheet


FEW_COLUMNS, SEVERAL_COLUMNS, MANY_COLUMNS = 4, 9, 12
"""A table of more columns than these is cards on a phone, is set closer, and closer still."""
LONGEST_INTERVAL = 24
"""Characters, such as `[1,234,000, 1,235,000]`."""
LONGEST_WORD = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One field of a table. `under` is a second, quieter line: an interval or a badge."""

    text: str
    under: str = ""
    key: float | str | None = None
    """What to sort by; the text where None."""
    number: bool = False
    strong: bool = False
    link: str = ""
    measured: Interval | None = None
    """What its text and its second line are made of, where it is a value with an interval."""
    null: float | None = None
    """No difference, such as a ratio of 1, to which none of its ends is rounded."""

    @property
    def told(self) -> bool:
        """Whether `under` is more than an interval: words, which may go on in a further line."""
        return len(self.under) > LONGEST_INTERVAL

    @property
    def unbroken(self) -> bool:
        """Whether it has a word, such as a path, that is too long for a column and may be broken anywhere."""
        return any(len(word) > LONGEST_WORD for word in f"{self.text} {self.under}".split())

    @classmethod
    def estimate(cls, value: Interval | None, *, strong: bool = False, null: float | None = None) -> Cell:
        """Return a value with its interval beneath; empty where it was not measured."""
        if value is None:
            return cls(text="", number=True)
        text, under = value.texts(null)
        return cls(
            text=text,
            under=under,
            key=value.value,
            number=True,
            strong=strong,
            measured=value,
            null=null,
        )

    @classmethod
    def ms(cls, seconds: float | None) -> Cell:
        """Return a time in milliseconds without an interval."""
        if seconds is None:
            return cls(text="", number=True)
        return cls(text=milliseconds(seconds), key=seconds, number=True)

    @classmethod
    def count(cls, value: int) -> Cell:
        """Return a whole number."""
        return cls(text=f"{value:,}", key=value, number=True)


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head, with its unit, and whether it is right-aligned."""

    title: str
    number: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table. The first cell of a row is its header. `row_ids` are anchors, where rows are linked to."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    row_ids: tuple[str, ...] = ()
    sortable: bool = True
    mixed: bool = False
    """Whether one column holds different quantities, which are rounded each for itself."""
    fold: str = ""
    """The text shown until it is opened; empty for a table that is always open."""

    def evenly_rounded(self) -> Table:
        """Return it with one rounding within each column of measured values."""
        if self.mixed:
            return self
        columns: dict[int, list[Interval]] = {}
        nulls: dict[int, float | None] = {}
        for row in self.rows:
            for place, cell in enumerate(row):
                if cell.measured is not None:
                    columns.setdefault(place, []).append(cell.measured)
                    nulls[place] = cell.null
        decimals = {place: decimals_of(values, nulls[place]) for place, values in columns.items()}
        if not decimals:
            return self
        rows = tuple(
            tuple(
                _at(cell, decimals[place]) if cell.measured is not None else cell
                for place, cell in enumerate(row)
            )
            for row in self.rows
        )
        return replace(self, rows=rows)

    def without_empty_columns(self) -> Table:
        """Return it without columns in which no row has anything."""
        kept = [place for place in range(len(self.columns)) if any(row[place].text for row in self.rows)]
        columns = tuple(self.columns[place] for place in kept)
        return replace(
            self, columns=columns, rows=tuple(tuple(row[place] for place in kept) for row in self.rows)
        )

    @property
    def cards(self) -> bool:
        """Whether on a phone each row is a card with all its fields."""
        return len(self.columns) > FEW_COLUMNS

    @property
    def width(self) -> str:
        """How closely it is set, so that all columns are seen at 1280 pixels: "", `wide` or `widest`."""
        count = len(self.columns)
        return "widest" if count > MANY_COLUMNS else "wide" if count > SEVERAL_COLUMNS else ""


def _at(cell: Cell, decimals: int) -> Cell:
    assert cell.measured is not None
    small = 0 < abs(cell.measured.value) < 10.0**-decimals
    # never round a value away
    text, under = cell.measured.rounded(cell.measured.decimals_in_column(cell.null) if small else decimals)
    return replace(cell, text=text, under=under)


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure before it is drawn: all its words, its data, and how to paint it.

    `paint` gets a sheet of `width_in` x `height_in`. `missing` maps the cases that belong into the figure
    and are not in it to the reason. `alt` says everything but the table's number, which the page adds.
    """

    file_name: str
    heading: str
    caption: str
    alt: str
    table: Table
    width_in: float
    height_in: float
    paint: Callable[[Sheet], None]
    missing: Mapping[str, str]
    narrow: Callable[[Sheet], None] | None = None
    """Paints the same for a phone, panels above each other, on a sheet of `narrow_in`."""
    narrow_in: tuple[float, float] = (0.0, 0.0)
    label: tuple[str, ...] = ()
    """Stands in the heading: what its numbers are where they are not the machine's own."""
    subtitle: str = ""
    """Of its files: the conditions that the heading does not tell (`report/outside.py`)."""
    source: str = ""
    """Of its files: the machine, the run and the program."""
    wanted: Wanted = ONLY_PNG

    @property
    def size(self) -> tuple[int, int]:
        """Its width and height on a page, in CSS pixels."""
        return round(self.width_in * 100), round(self.height_in * 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page. `absent` says why there is no figure where one could be expected."""

    anchor: str
    title: str
    question: str = ""
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    absent: str = ""
    tables: tuple[Table, ...] = ()
    """What is shown beneath the figures without being the data of one."""

    @property
    def shows(self) -> bool:
        """Whether it has anything to look at; what has not is told in a line at the page's end."""
        return bool(self.pictures or self.tables)
