"""Check, draw and render the sections that installed packages register, or show why that failed."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Union

import jinja2

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.errors import DdpbenchError
from ddpbench.installed import Function, functions
from ddpbench.picture_formats import PictureFormats
from ddpbench.report import parts
from ddpbench.report.draw.canvas import DrawnPicture
from ddpbench.report.embedded import Embedded, TableCounter, labelled
from ddpbench.report.parts import Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.text_safety import on_one_line, shortened, with_article

_ID = re.compile(r"""\bid="([\w-]+)"|\bheading\("([\w-]+)\"""")
_NUMBERED = re.compile(r"(?:figure|table)-\d+")
_FILE_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """The HTML ids and the file names of figures that the page already uses."""

    ids: Collection[str]
    file_names: Collection[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class OfPackage:
    """A section of an installed package. `drawn` has the section's drawn pictures, in order."""

    section: Section
    drawn: Sequence[DrawnPicture] = ()


def ids_of_page() -> set[str]:
    """Return the HTML ids that are in the template of the page."""
    text = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    return {one or other for one, other in _ID.findall(text)}


def ids_of(sections: Sequence[Section]) -> set[str]:
    """Return the HTML ids that sections add to a page: the ids of the sections and of their tables' rows."""
    tables = [table for section in sections for table in _tables(section)]
    return {section.anchor for section in sections} | {one for table in tables for one in table.row_ids}


def sections_of_packages(
    given: tuple[Any, Sequence[Row]],
    taken: Taken,
    environment: jinja2.Environment,
    draw: Callable[[Picture], DrawnPicture],
) -> Iterator[OfPackage]:
    """Yield the sections that installed packages register, with their pictures drawn.

    In place of a section that fails, yield a section that states the reason.

    Args:
        given: the run's summary and its rows, the arguments of each section's function.
        taken: the ids and file names that the page uses without these sections.
        environment: the environment of the page's templates.
        draw: draws a picture in the same way as the page's own.
    """
    ids, names = {*taken.ids}, {name.lower() for name in taken.file_names}
    for number, make in enumerate(functions("section")):
        whose = f"{make.name!r} of the package {make.package}"
        try:
            made = _made(make, given, environment, draw)
            why = "" if made is None else _problem(made.section, ids, names)
        except TypeError as error:
            made, why = None, str(error)
        except DdpbenchError as error:
            made, why, whose = None, str(error), ""
        if why:
            words = f"{whose} {why}".strip()
            anchor = _free(f"of-{make.package}-{number}", ids)
            made = OfPackage(section=Section(anchor=anchor, title=make.name, absent=f"{words}."))
        if made is not None:
            ids |= ids_of([made.section])
            names |= {picture.file_name.lower() for picture in made.section.pictures}
            yield made


def _made(
    make: Function,
    given: tuple[Any, Sequence[Row]],
    environment: jinja2.Environment,
    draw: Callable[[Picture], DrawnPicture],
) -> OfPackage | None:
    """Make, check and draw a package's section; None if it adds none to this run.

    Raises:
        RequestError: the section's function or its drawing fails, or the section cannot be rendered.
        TypeError: the section, or a value in it, has a wrong type.
    """
    section = make(*given)
    if section is None:
        return None
    if not isinstance(section, Section):
        raise TypeError(f"returned {with_article(type(section).__name__)}")
    for wrong in _wrong(section, Section, ""):
        raise TypeError(f"returned a section whose {wrong}")
    with make.guarded():
        numbers = TableCounter()
        embedded = [
            Embedded(picture=picture, number=number, table=numbers.sure(picture.table), shared=())
            for number, picture in enumerate(section.pictures, start=1)
        ]
        beneath = [numbers.sure(table) for table in section.tables]
        environment.get_template("section.html").make_module().section_of(section, embedded, beneath)  # type: ignore[attr-defined]
        return OfPackage(section=section, drawn=[draw(labelled(picture)) for picture in section.pictures])


def _problem(section: Section, ids: Collection[str], names: Collection[str]) -> str:
    """Describe the first invalid or used id or file name; empty if there is none.

    `ids` and `names` are the ids and the file names that the page already uses.
    """
    row_ids = [one for table in _tables(section) for one in table.row_ids]
    own = [section.anchor, *row_ids]
    for one in own:
        if not one or any(map(str.isspace, one)):
            return f"has the id {shortened(one)}: give one without spaces"
        if one in ids or _NUMBERED.fullmatch(one) or own.count(one) > 1:
            what = "anchor" if one == section.anchor and one not in row_ids else "id"
            return f"has the {what} {shortened(one)}, which another part of the page has: choose another"
    files = [picture.file_name.lower() for picture in section.pictures]
    for picture, name in zip(section.pictures, files, strict=True):
        if not _FILE_NAME.fullmatch(name):
            return (
                f"has the file name {shortened(picture.file_name)}: give one of letters, digits, '-' and '_'"
            )
        if name in names or files.count(name) > 1:
            return f"has the file name {shortened(picture.file_name)} of another figure: choose another"
    return ""


def _free(anchor: str, ids: Collection[str]) -> str:
    anchor = "-".join(anchor.split())
    while anchor in ids:
        anchor += "-"
    return anchor


def _tables(section: Section) -> list[Table]:
    return [*(picture.table for picture in section.pictures), *section.tables]


_NAMES = {
    "Sheet": Any,
    "Interval": Interval,
    "PictureFormats": PictureFormats,
    "Callable": Callable,
    "Mapping": Mapping,
}


def _wrong(value: object, kind: Any, where: str) -> Iterator[str]:
    """Describe each part of `value` that does not match the annotation `kind`; `where` is its path."""
    origin, among = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        if all(any(True for _ in _wrong(value, one, where)) for one in among):
            yield _words(where, value, kind)
    elif origin is tuple:
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        length = len(value) if listed else 0  # type: ignore[arg-type]
        kinds = [among[0]] * length if among[-1] is Ellipsis else among
        if not listed or len(kinds) != length:
            yield _words(where, value, kind)
            return
        for place, (one, each) in enumerate(zip(value, kinds, strict=True)):  # type: ignore[call-overload]
            yield from _wrong(one, each, f"{where}[{place}]")
    elif not _is_of(value, origin or kind):
        yield _words(where, value, kind)
    else:
        yield from _wrong_within(value, kind, where)


def _is_of(value: object, kind: Any) -> bool:
    return kind is Any or isinstance(value, int | float if kind is float else kind)


def _wrong_within(value: object, kind: Any, where: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            for each, of in zip((key, one), typing.get_args(kind), strict=True):
                yield from _wrong(each, of, f"{where}[{shortened(key)}]")
    elif is_dataclass(kind) and kind.__module__ == parts.__name__:
        hints = typing.get_type_hints(kind, localns=_NAMES)
        for field in fields(kind):
            path = f"{where}.{field.name}" if where else field.name
            yield from _wrong(getattr(value, field.name), hints[field.name], path)


def _words(where: str, value: object, kind: Any) -> str:
    return on_one_line(f"{where} is {shortened(value)}, where a {_type_words(kind)} was expected")


def _type_words(kind: Any) -> str:
    if typing.get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_type_words, typing.get_args(kind)))
    return "None" if kind is types.NoneType else str((typing.get_origin(kind) or kind).__name__)
