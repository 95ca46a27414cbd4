"""Find installed fonts for characters that the figures' own font lacks, and characters that no font has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

_MISSING = re.compile(r"Glyph (\d+) ")
_PLACEHOLDERS = "Last Resort"
"""Name of a font that comes with matplotlib and has a box for every character."""


def missing_glyphs(messages: Iterable[str]) -> set[str]:
    """Return the characters that matplotlib's warnings report as missing from the fonts."""
    return {chr(int(found[1])) for message in messages for found in [_MISSING.match(message)] if found}


def fonts_with(characters: Collection[str]) -> Sequence[str]:
    """Return a few installed font families that together have as many of these characters as possible."""
    left, families = set(characters), []
    fonts = list(_installed())
    while left and fonts:
        family, has = max(fonts, key=lambda font: (len(left & font[1]), font[0]))
        if not left & has:
            break
        families.append(family)
        left -= has
    return families


def _installed() -> Iterator[tuple[str, set[str]]]:
    """Yield each installed font family with its characters, except bitmap fonts, which cannot be drawn."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    seen: set[str] = set()
    for entry in font_manager.fontManager.ttflist:
        if entry.name in seen or entry.name.startswith(_PLACEHOLDERS) or entry.style != "normal":
            continue
        try:
            font: Any = FT2Font(entry.fname)
            if font.scalable:
                yield entry.name, set(map(chr, font.get_charmap()))
                seen.add(entry.name)
        except (OSError, RuntimeError):  # removed since the list was made, or of a format that cannot be read
            continue
