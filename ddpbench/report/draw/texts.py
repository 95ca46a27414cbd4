"""Give the texts of an SVG a width that does not depend on the reader's fonts.

matplotlib places texts by the widths of DejaVu Sans, which few readers have. `textLength` sets each text to its width
in DejaVu Sans, in any font. Verdana, which Windows, macOS and iOS have, is as wide within a few per cent.

Source: W3C, "Scalable Vector Graphics (SVG) 2", 2018, section 11.5.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ddpbench.report.draw import style
from ddpbench.report.draw.marks import with_titles

_SVG = "http://www.w3.org/2000/svg"
_NAMESPACES = {"": _SVG, "xlink": "http://www.w3.org/1999/xlink"}
TEXT = f"{{{_SVG}}}text"
FAMILIES = "DejaVu Sans,Verdana,Bitstream Vera Sans,system-ui,sans-serif"
"""Fonts for texts on the page: first matplotlib's own, then a font of nearly the same width."""
_MEASURED_PT = 100.0
_BAR = "|"
_SPACED = re.compile("[\u0000-\u02ff\u0370-\u03ff\u2000-\u22ff]*")
"""Matches texts that are fitted to their width by spacing their letters. In other texts, for example in Arabic, letters
may be joined, so the letters themselves are stretched.
"""
_ROTATION = re.compile(r"rotate\(-?0(?:\.0*)?(?: [^)]*)?\)")
_TRANSLATE = re.compile(r"translate\((\S+) (\S+)\)")


def finished(svg: bytes, families: Sequence[str]) -> bytes:
    """Return matplotlib's SVG with titles of marks, and with texts that keep their width in any reader's font.

    `families` are the font families with which matplotlib placed the texts.
    """
    root = ElementTree.fromstring(svg)
    with_titles(root)
    root.set("font-family", FAMILIES)
    for node in root.iter(TEXT):
        declared = dict(_declarations(node.attrib.get("style", "")))
        text = node.text or ""
        if len(text) > 1:
            size = float(declared.get("font-size", "0px").removesuffix("px"))
            weight, slant = declared.get("font-weight", "normal"), declared.get("font-style", "normal")
            width = size * width_em(text, weight, slant, tuple(families))
            node.set("textLength", f"{width:.1f}")
            if not _SPACED.fullmatch(text):
                node.set("lengthAdjust", "spacingAndGlyphs")
        declared.pop("font-family", None)
        if declared.get("text-anchor") == "start":
            del declared["text-anchor"]
        node.set("style", "; ".join(f"{name}: {value}" for name, value in declared.items()))
        _place(node)
    for prefix, address in _NAMESPACES.items():
        ElementTree.register_namespace(prefix, address)
    return ElementTree.tostring(root, encoding="unicode").encode()


def _declarations(style: str) -> list[tuple[str, str]]:
    pairs = (one.split(": ", 1) for one in style.split("; "))
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]


def _place(node: Element) -> None:
    transform = _ROTATION.sub("", node.attrib.pop("transform", "")).strip()
    if moved := _TRANSLATE.fullmatch(transform):
        node.set("x", moved[1])
        node.set("y", moved[2])
    elif transform:
        node.set("transform", transform)


@cache
def width_em(
    text: str,
    weight: str = "normal",
    slant: str = "normal",
    families: tuple[str, ...] = tuple(style.SETTINGS["font.family"]),
) -> float:
    """Return how far a text advances in these font families, as a multiple of the font size.

    matplotlib measures only from the first to the last ink, without spaces at the ends. So the text is measured between
    two bars, and the width of the bars is subtracted.
    """
    return _ink_em(f"{_BAR}{text}{_BAR}", weight, slant, families) - _ink_em(
        2 * _BAR, weight, slant, families
    )


def _ink_em(text: str, weight: str, slant: str, families: tuple[str, ...]) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(
        family=list(families),
        weight=int(weight) if weight.isdigit() else weight,
        style=slant,  # type: ignore[arg-type]
        size=_MEASURED_PT,
    )
    width, *_ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / _MEASURED_PT
