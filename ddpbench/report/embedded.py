"""Embed pictures as SVG and downloads as data URLs in the page, number its tables, and insert the list of terms.

Pictures are drawn while the page is written with placeholders, which `with_pictures` replaces.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from ddpbench.analysis.sentences import but, headline
from ddpbench.report.draw.canvas import DrawnPicture
from ddpbench.report.figure_texts import fitted
from ddpbench.report.method import TERMS
from ddpbench.report.parts import Picture, Table
from ddpbench.text_safety import on_page


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedTable:
    """A table and its number on the page."""

    number: int
    table: Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedded:
    """A picture with its number, table and texts, as the page's template needs them."""

    picture: Picture
    number: int
    table: NumberedTable
    shared: Collection[str]
    """Words that the page states once for all cases, and that heading and caption leave out."""
    folded: bool = False

    @property
    def heading(self) -> str:
        """Return the picture's heading."""
        return self._fitted.heading

    @property
    def conditions(self) -> str:
        """Return the figure's group and label, without phrases that the page states for all cases."""
        words = [self.picture.group, *self.picture.label]
        shown = [word for word in words if word not in self.shared and word not in self.heading]
        return ", ".join(filter(None, shown))

    @property
    def caption(self) -> str:
        """Return the text beneath the picture, without phrases that the page states for all cases."""
        return self._fitted.caption

    @property
    def reading(self) -> str:
        """Return sentences on how to read the figure: the rest of its caption."""
        return self._fitted.reading

    @property
    def _fitted(self) -> Picture:
        stated = {*self.shared, *self.picture.label, self.picture.group}
        caption = but(self.picture.caption, stated)
        return fitted(replace(self.picture, heading=headline(self.picture.heading), caption=caption))

    @property
    def wide(self) -> Markup:
        """Return the placeholder for the picture's SVG."""
        return Markup(f"&wide-{self.number};")

    @property
    def narrow(self) -> Markup:
        """Return the placeholder for the SVG for phones; empty if the picture has no such SVG."""
        return Markup(f"&narrow-{self.number};") if self.picture.narrow is not None else Markup()

    @property
    def alt(self) -> str:
        """Return the alternative text of the figure, which ends with the number of its table."""
        return f"{labelled(self.picture).alt} Data in table {self.table.number}."


_PLACE = re.compile(r"&(wide|narrow)-(\d+);")
"""Matches a placeholder for a picture. Texts from a run cannot match, because `&` is escaped in them."""


def with_pictures(html: str, drawn: Sequence[DrawnPicture]) -> str:
    """Return the page with each placeholder (numbered from 1) replaced by the SVG of its picture.

    A line below the page's heading lists characters that were drawn as boxes in the files of figures.
    """

    def svg(place: re.Match[str]) -> str:
        one = drawn[int(place[2]) - 1]
        return (one.narrow if place[1] == "narrow" else one.svg).decode("utf-8")

    boxes = sorted(set().union(*(one.missing for one in drawn)))
    if boxes:
        html = html.replace("</h1>", f"</h1>\n<p>{escape(_boxes(boxes))}</p>", 1)
    return _PLACE.sub(svg, html)


_MOST_BOXES = 12


def _boxes(characters: Sequence[str]) -> str:
    more = len(characters) - _MOST_BOXES
    listed = " ".join(characters[:_MOST_BOXES]) + (f" and {more} more" if more > 0 else "")
    return (
        f"The files of figures have boxes in place of {listed}: no font that is installed here has them. Install one, "
        "such as the package fonts-noto-cjk, and make the report again; this page is right."
    )


TERMS_HERE = Markup("<!-- terms -->")
"""Placeholder that `with_terms` replaces by the list of terms."""


def with_terms(html: str) -> str:
    """Return the page with a list of the terms that its text uses, and their meanings, in place of `TERMS_HERE`."""
    body = html[html.index("<body>") : html.index('<h2 id="method"')]
    text = re.sub(r"<[^>]*>", " ", body).lower()
    entries = "".join(
        Markup("<dt>{}</dt><dd>{}</dd>\n").format(on_page(term), on_page(meaning))
        for term, meaning in TERMS
        if any(_has(text, word.lower()) for word in term.split(", "))
    )
    return html.replace(TERMS_HERE, entries)


def _has(text: str, word: str) -> bool:
    """Return whether a word in the text begins with `word`; the substring search first is fast on large texts."""
    return word in text and re.search(rf"\b{re.escape(word)}", text) is not None


class TableCounter:
    """Numbers tables in the order in which they appear on the page."""

    def __init__(self) -> None:
        self._tables = 0

    def table(self, table: Table | None) -> NumberedTable | None:
        """Return the table with the next number, and with evenly rounded columns.

        If `table` is None, return None and use no number.
        """
        if table is None:
            return None
        self._tables += 1
        return NumberedTable(number=self._tables, table=table.evenly_rounded())

    def sure(self, table: Table) -> NumberedTable:
        """Like `table`, for a table that is never None."""
        numbered = self.table(table)
        assert numbered is not None
        return numbered


def labelled(picture: Picture) -> Picture:
    """Return the picture with its group and its label added to the alternative text."""
    group = f" Cases: {picture.group}." if picture.group else ""
    label = f" All of it: {', '.join(picture.label)}." if picture.label else ""
    return replace(picture, alt=f"{picture.alt}{group}{label}")


def data_address(kind: str, text: str) -> str:
    """Return a text as a base64 data URL of MIME type `kind`, for a download link.

    A page's content security policy need not allow such a link.
    """
    return f"data:{kind};base64,{base64.b64encode(clean_bytes(text)).decode('ascii')}"


def clean_bytes(text: str) -> bytes:
    """Return the text in UTF-8, with a question mark for each character that cannot be encoded."""
    return text.encode("utf-8", "replace")
