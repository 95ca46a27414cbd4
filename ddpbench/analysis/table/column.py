"""Definition of a column of `cases.csv`: its name, type, unit, meaning, and the function that computes its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.table.result import CaseResult
from ddpbench.spec import Case
from ddpbench.spec.grouping import AXES
from ddpbench.units import Unit

ColumnKind = Literal["text", "whole", "truth", "number"]
ColumnSource = Literal[
    "plan",
    "launches",
    "timed steps",
    "instrumented steps",
    "proof",
    "evaluation",
    "checkpoints",
    "links",
    "replay",
    "training to a loss",
    "recovery",
]
Part = TypeVar("Part")
Value = TypeVar("Value")
_KINDS: dict[object, ColumnKind] = {str: "text", int: "whole", bool: "truth", float: "number"}
_HINTS = get_type_hints(Case, include_extras=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvColumn:
    """Definition of a column of `cases.csv`."""

    name: str
    kind: ColumnKind
    unit: str
    """Unit; `1` for shares and ratios, empty for columns without a unit."""
    meaning: str
    source: ColumnSource
    value: Callable[[CaseResult], Any]
    """Function that returns a case's value. None, or an empty text in a column of texts, makes an empty cell."""
    of: str = ""
    """Name of the column with the value, for a column with an end of its 95 % interval; empty for all other columns."""

    @property
    def dtype(self) -> str:
        """Return the column's pandas dtype.

        Empty cells are NA (NaN for numbers), never -1, 0 or an empty text.
        """
        return {"text": "string", "whole": "Int64", "truth": "boolean", "number": "float64"}[self.kind]


def setting(name: str, unit: str = "", meaning: str = "") -> CsvColumn:
    """Return the column for a field of `Case`, with the field's type and its declared unit and meaning.

    Raises:
        TypeError: no kind of column can contain values of the field's type.
    """
    hint, declared = _HINTS[name], AXES.get(name)
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        unit = next((one.name for one in more if isinstance(one, Unit)), unit)
    kind = _KINDS[str] if get_origin(hint) is Literal else _KINDS.get(hint)
    if kind is None:
        raise TypeError(
            f"{name} is of type {hint}, which has no kind of column: add its column in "
            "ddpbench/analysis/table/columns.py"
        )
    return CsvColumn(
        name=name,
        kind=kind,
        unit=unit,
        meaning=meaning or (declared.meaning if declared is not None else ""),
        source="plan",
        value=attrgetter(f"case.{name}"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredColumns:
    """The three columns of a number and of the two ends of its 95 % interval."""

    middle: CsvColumn
    ends: tuple[CsvColumn, ...]

    def __iter__(self) -> Iterator[CsvColumn]:
        return iter((self.middle, *self.ends))


@dataclass(frozen=True, slots=True)
class From:
    """Factory for columns whose values come from one source. Each method makes a column of one type."""

    source: ColumnSource

    def text(
        self, name: str, meaning: str, value: Callable[[CaseResult], str | None], unit: str = ""
    ) -> CsvColumn:
        """Return a column of text. Its `unit` is usually empty."""
        return self._column("text", name, unit, meaning, value)

    def whole(
        self, name: str, unit: str, meaning: str, value: Callable[[CaseResult], int | None]
    ) -> CsvColumn:
        """Return a column of whole numbers."""
        return self._column("whole", name, unit, meaning, value)

    def truth(self, name: str, meaning: str, value: Callable[[CaseResult], bool | None]) -> CsvColumn:
        """Return a column of booleans."""
        return self._column("truth", name, "", meaning, value)

    def number(
        self, name: str, unit: str, meaning: str, value: Callable[[CaseResult], float | None]
    ) -> CsvColumn:
        """Return a column of numbers."""
        return self._column("number", name, unit, meaning, value)

    def measured(
        self, pattern: str, unit: str, meaning: str, value: Callable[[CaseResult], Interval | None]
    ) -> MeasuredColumns:
        """Return the columns of a number and of the ends of its interval.

        `{}` in the pattern is replaced by `_ci_low` and `_ci_high` in the names of the ends, and removed for the
        number.
        """
        middle = self.number(pattern.format(""), unit, meaning, PartReader(value)(lambda found: found.value))
        ends: list[tuple[str, str, Callable[[Interval], float | None]]] = [
            ("low", "lower", lambda found: found.low),
            ("high", "upper", lambda found: found.high),
        ]
        return MeasuredColumns(
            middle=middle,
            ends=tuple(
                CsvColumn(
                    name=pattern.format(f"_ci_{end}"),
                    kind="number",
                    unit=unit,
                    meaning=f"{words} end of the 95 % interval of {middle.name}",
                    source=self.source,
                    value=PartReader(value)(read),
                    of=middle.name,
                )
                for end, words, read in ends
            ),
        )

    def _column(
        self, kind: ColumnKind, name: str, unit: str, meaning: str, value: Callable[[CaseResult], Any]
    ) -> CsvColumn:
        return CsvColumn(name=name, kind=kind, unit=unit, meaning=meaning, source=self.source, value=value)


@dataclass(frozen=True, slots=True)
class PartReader(Generic[Part]):
    """Reads values from a part of the results, and returns None for cases that lack the part.

    Call an instance with a function that reads a value of the part.
    """

    part: Callable[[CaseResult], Part | None]

    def __call__(self, read: Callable[[Part], Value]) -> Callable[[CaseResult], Value | None]:
        """Return a function that reads the value of a case that has the part, and returns None for other cases."""

        def value(result: CaseResult) -> Value | None:
            found = self.part(result)
            return None if found is None else read(found)

        return value
