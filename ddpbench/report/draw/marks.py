"""Attach words to the marks of a figure: what each one shows, and which series it belongs to.

The SVG has them as `<title>`, for pointers, screen readers and the page's script. `describe` writes them into
matplotlib's group id, which `with_titles` turns into elements.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from ddpbench.text_safety import clean, on_one_line

if TYPE_CHECKING:
    from matplotlib.artist import Artist

_MARKED = "marked:"
_SVG = "{http://www.w3.org/2000/svg}"


def describe(artist: Artist, series: str, *titles: str) -> None:
    """Attach words to an artist.

    `series` is the name of its series in the legend or a label; it may be empty. `titles` has one text for each drawn
    point, or a single text for the whole artist. Without `titles`, the artist is only marked as part of the series.
    """
    words = [on_one_line(clean(title)) for title in titles]
    artist.set_gid(_MARKED + json.dumps([series, words]))


def describe_points(drawn: Any, series: str, *titles: str) -> None:
    """Attach words to each point of `Axes.errorbar`; its whiskers are marked as part of the series too."""
    line, caps, whiskers = drawn
    describe(line, series, *titles)
    for artist in (*caps, *whiskers):
        describe(artist, series)


def with_titles(root: Element) -> None:
    """Replace what `describe` wrote by `<title>` elements, and number the series in `data-s`.

    If several series have marks with titles, each gets a number. Their marks that contain texts get these as
    `aria-label`.
    """
    groups = [node for node in root.iter(f"{_SVG}g") if node.attrib.get("id", "").startswith(_MARKED)]
    words = [json.loads(node.attrib.pop("id").removeprefix(_MARKED)) for node in groups]
    marked = [series for series, titles in words if series and titles]
    numbers = {series: str(number) for number, series in enumerate(dict.fromkeys(marked))}
    for node, (series, titles) in zip(groups, words, strict=True):
        if len(numbers) > 1 and series in numbers:
            node.set("data-s", numbers[series])
            if texts := [text.text or "" for text in node.iter(f"{_SVG}text")]:
                node.attrib |= {"role": "img", "aria-label": " ".join(texts)}
        if titles:
            _entitle(node, titles)


def _entitle(node: Element, titles: Sequence[str]) -> None:
    points = list(node.iter(f"{_SVG}use"))
    if len(points) == len(titles):
        for point, title in zip(points, titles, strict=True):
            _add_title(point, [title])
    else:
        _add_title(node, titles)


def _add_title(node: Element, lines: Iterable[str]) -> None:
    node.set("role", "img")
    title = Element(f"{_SVG}title")
    title.text = "\n".join(lines)
    node.insert(0, title)
