"""Replace the colours of an SVG by CSS variables, which have other values in a dark theme."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from ddpbench.report.draw import style

_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_BLACK = "#000000"


def set_theme(root: Element, scope: str) -> str:
    """Replace the colours that a dark theme changes by CSS variables, and return the CSS rules with their values.

    `scope` is a CSS selector of the SVG's root. Printed pages always have the light colours.
    """
    used = {_BLACK}
    for node in root.iter():
        if "fill" in node.attrib and _COLOUR.fullmatch(node.attrib["fill"]):  # var() works only in styles
            own = node.attrib.get("style")
            node.set("style", f"fill: {node.attrib.pop('fill')}" + (f"; {own}" if own else ""))
        used.update(_COLOUR.findall(node.attrib.get("style", "")))
    changed = {colour: dark for colour in sorted(used) if (dark := style.on_dark(colour)) != colour}

    def variable(match: re.Match[str]) -> str:
        return f"var(--{match[0][1:]})" if match[0] in changed else match[0]

    for node in root.iter():
        if "style" in node.attrib:
            node.set("style", _COLOUR.sub(variable, node.attrib["style"]))
    light = "".join(f"--{colour[1:]}:{colour};" for colour in changed)
    dark = "".join(f"--{colour[1:]}:{value};" for colour, value in changed.items())
    return (
        f"{scope}{{{light}fill:var(--{_BLACK[1:]})}}"
        f"@media screen and (prefers-color-scheme:dark){{{scope}{{{dark}}}}}"
    )
