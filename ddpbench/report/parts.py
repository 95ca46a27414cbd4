"""Sections, figures before they are drawn, and tables, as plain values without HTML or matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddpbench.analysis.statistics.interval import Interval, decimals_of
from ddpbench.picture_formats import ONLY_PNG, PictureFormats
from ddpbench.report.words import milliseconds

if TYPE_CHECKING:
    from ddpbench.report.draw.sheet import Sheet


FEW_COLUMNS, SEVERAL_COLUMNS, MANY_COLUMNS = 4, 9, 12
"""A table with more than FEW_COLUMNS is shown as cards on a phone. A table with more than SEVERAL_COLUMNS has its
columns closer together. A table with more than MANY_COLUMNS has them closest.
"""
LONGEST_INTERVAL = 24
"""Maximum length of an interval, such as `[1,234,000, 1,235,000]`, in characters."""
LONGEST_WORD = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A cell of a table. `under` is a second, less prominent text, for example an interval or a badge."""

    text: str
    under: str = ""
    key: float | str | None = None
    """Sort key; if None, the table sorts by the text."""
    number: bool = False
    strong: bool = False
    link: str = ""
    measured: Interval | None = None
    """The value and interval from which `text` and `under` are made."""
    null: float | None = None
    """The value that means no difference, such as 1 for a ratio. Rounding never moves an end of the interval to it."""

    @property
    def has_words(self) -> bool:
        """Return whether `under` is longer than an interval, so that it may be broken into lines."""
        return len(self.under) > LONGEST_INTERVAL

    @property
    def unbroken(self) -> bool:
        """Return whether the cell has a word that is too long for a column, for example a path.

        Such a word may be broken anywhere.
        """
        return any(len(word) > LONGEST_WORD for word in f"{self.text} {self.under}".split())

    @classmethod
    def estimate(cls, value: Interval | None, *, strong: bool = False, null: float | None = None) -> Cell:
        """Return a cell that shows a value and its interval; an empty cell for None."""
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
        """Return a cell that shows a time in milliseconds; an empty cell for None."""
        if seconds is None:
            return cls(text="", number=True)
        return cls(text=milliseconds(seconds), key=seconds, number=True)

    @classmethod
    def count(cls, value: int) -> Cell:
        """Return a cell that shows an integer."""
        return cls(text=f"{value:,}", key=value, number=True)


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a column, which includes the unit. `number` is true for a right-aligned column."""

    title: str
    number: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of the page. The first cell of each row is the row's header.

    `row_ids` are the HTML ids of the rows, if they have any.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    row_ids: tuple[str, ...] = ()
    sortable: bool = True
    mixed: bool = False
    """True if one column holds different quantities, which are rounded separately."""
    fold: str = ""
    """The text that a closed table shows until a reader opens it; empty for a table that is always open."""
    reading: str = ""
    """Further sentences on the table, for which the caption has no room. The page folds them beneath the table."""

    def evenly_rounded(self) -> Table:
        """Return the table with all measured values of a column rounded to the same number of decimals."""
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
        """Return the table without columns that are empty in every row."""
        kept = [place for place in range(len(self.columns)) if any(row[place].text for row in self.rows)]
        columns = tuple(self.columns[place] for place in kept)
        return replace(
            self, columns=columns, rows=tuple(tuple(row[place] for place in kept) for row in self.rows)
        )

    @property
    def cards(self) -> bool:
        """Return whether a phone shows each row as a card with all its fields."""
        return len(self.columns) > FEW_COLUMNS

    @property
    def width(self) -> str:
        """Return `wide` or `widest` for a table whose many columns are set closer together; otherwise empty.

        The columns then fit a screen 1280 pixels wide.
        """
        count = len(self.columns)
        return "widest" if count > MANY_COLUMNS else "wide" if count > SEVERAL_COLUMNS else ""


def _at(cell: Cell, decimals: int) -> Cell:
    assert cell.measured is not None
    small = 0 < abs(cell.measured.value) < 10.0**-decimals
    # never round a value away
    digits = cell.measured.decimals_in_column(cell.null) if small else decimals
    text, under = cell.measured.rounded(digits, cell.null)
    return replace(cell, text=text, under=under)


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure before it is drawn, with all its words, its data, and the function that paints it.

    `heading` is one finding. Only the first two lines of `caption` stand beneath the picture
    (`report/figure_texts.py`).

    `paint` gets a sheet of `width_in` x `height_in` inches. `missing` has, by case id, the reason why a case is not
    shown. `alt` is the alternative text, to which the page adds the table's number.
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
    """Paints the layout for a phone, with panels above each other, on a sheet of size `narrow_in`, inches."""
    narrow_in: tuple[float, float] = (0.0, 0.0)
    label: tuple[str, ...] = ()
    """Words on what was emulated, which stand beneath the heading."""
    group: str = ""
    """Words that distinguish the figure's cases from those of the section's other figures. They stand beneath the
    heading.
    """
    reading: str = ""
    """Sentences on how to read the figure, other than those beneath it. Empty until `report/figure_texts.py` sets it.
    """
    subtitle: str = ""
    """Subtitle of the picture's files: the conditions that the heading does not state (`report/outside.py`)."""
    source: str = ""
    """Source line of the picture's files: the machine, the run and the program."""
    wanted: PictureFormats = ONLY_PNG

    @property
    def size(self) -> tuple[int, int]:
        """Return the picture's width and height on a page, in CSS pixels."""
        return round(self.width_in * 100), round(self.height_in * 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page. `absent` explains why a figure that readers may expect is missing."""

    anchor: str
    title: str
    question: str = ""
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    absent: str = ""
    tables: tuple[Table, ...] = ()
    """Tables beneath the figures, in addition to the tables of the figures' data."""

    @property
    def shows(self) -> bool:
        """Return whether the section has a picture or a table. If not, the end of the page gives the reason."""
        return bool(self.pictures or self.tables)
