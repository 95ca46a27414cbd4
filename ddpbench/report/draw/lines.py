"""Break texts into lines that fit a figure, by widths estimated on the large side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ddpbench.report.draw import style

_CHARACTER_EM = 0.62
_MOST_LINES = 6


def text_width_in(text: str, points: float) -> float:
    """Estimate the width in inches of a text's longest line in DejaVu Sans. The estimate errs on the large side.

    `points` is the font size.
    """
    return max(map(len, text.splitlines()), default=0) * points * _CHARACTER_EM / 72


def in_lines(text: str, room_in: float, points: float) -> str:
    """Break a text into at most six lines that fit into `room_in` inches. An ellipsis replaces text beyond that.

    `points` is the font size.
    """
    across = int(72 * room_in / (points * _CHARACTER_EM))
    lines = textwrap.wrap(text, across, max_lines=_MOST_LINES, placeholder=" \N{HORIZONTAL ELLIPSIS}")
    return "\n".join(lines)


def height_in(texts: Iterable[str], points: float) -> float:
    """Return the height in inches of the text that has the most lines."""
    return max(text.count("\n") + 1 for text in texts) * points * 1.2 / 72


def in_legend(name: str) -> str:
    """Break a name into lines that fit the legend of a figure for phones, which has one column."""
    return in_lines(name, style.NARROW_WIDTH_IN - 0.15, style.NOTE_PT)


def legend_lines(names: Iterable[str]) -> int:
    """Return the number of lines that these names take in the legend of a figure for phones."""
    return sum(in_legend(name).count("\n") + 1 for name in names)
