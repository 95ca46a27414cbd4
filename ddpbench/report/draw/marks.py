"""Say of a figure's marks what they show and to which series they belong.

The SVG has the words as `<title>`, which browsers show next to the pointer, and which screen readers and the page's
script read. `describe` writes them into matplotlib's group id, which `with_titles` turns into elements of the SVG.
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
    """Say what an artist shows.

    `series` is what the legend or a label calls its series, or empty. `titles` has the words for each of its points
    that is drawn, or one text for the artist as a whole; none for an artist that only belongs to the series.
    """
    words = [on_one_line(clean(title)) for title in titles]
    artist.set_gid(_MARKED + json.dumps([series, words]))


def describe_points(drawn: Any, series: str, *titles: str) -> None:
    """Say what each point of `Axes.errorbar` shows; its whiskers belong to the series too."""
    line, caps, whiskers = drawn
    describe(line, series, *titles)
    for artist in (*caps, *whiskers):
        describe(artist, series)


def with_titles(root: Element) -> None:
    """Replace what `describe` wrote by titles, and by numbers of series where a label names a series of marks."""
    groups = [node for node in root.iter(f"{_SVG}g") if node.attrib.get("id", "").startswith(_MARKED)]
    words = [json.loads(node.attrib.pop("id").removeprefix(_MARKED)) for node in groups]
    marked = [series for series, titles in words if series and titles]
    numbers = {series: str(number) for number, series in enumerate(dict.fromkeys(marked))}
    for node, (series, titles) in zip(groups, words, strict=True):
        if len(numbers) > 1 and series in numbers:
            node.set("data-s", numbers[series])
        if titles:
            _entitle(node, titles)


def _entitle(node: Element, titles: Sequence[str]) -> None:
    """Add the titles to the group's points; to the group as a whole if there are not as many points."""
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
