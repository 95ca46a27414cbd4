"""Make a matplotlib SVG ready to be part of a page: smaller, with colours for a dark theme, and with its own ids."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zlib import crc32

from ddpbench.report.draw.texts import FAMILIES, TEXT
from ddpbench.report.draw.theme import set_theme

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_DECIMALS = 2
"""Decimals of lengths in points: a hundredth is a thirtieth of a pixel on the finest screens."""
_LENGTHS = frozenset({"x", "y", "width", "height", "transform", "textLength"})
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_COMMAND = re.compile(r"([MLQCzZ])([^MLQCzZ]*)")
_NUMBER = re.compile(r"-?\d+\.\d+")
_SCALE = re.compile(r"scale\([^)]*\)")
_TRANSLATE = re.compile(r"translate\((\S+) (\S+)\)")
_USED = re.compile(r"url\(#([^)]+)\)")


def prefix_of(file_name: str, form: str) -> str:
    """Return a prefix for the ids of a figure's SVG, different for each figure and form, and the same on every page."""
    number, digits = crc32(f"{file_name} {form}".encode()), ""
    for _ in range(5):
        number, digit = divmod(number, len(_DIGITS))
        digits += _DIGITS[digit]
    return f"f{digits}"


def slim(svg: bytes, prefix: str, size: tuple[int, int]) -> bytes:
    """Return the SVG without metadata and unused ids, with rounded, relative paths, and each style written once.

    `prefix` begins all ids and style rules, so that a page can hold several SVGs. `size` is in CSS pixels.
    """
    root = ElementTree.fromstring(svg)
    _drop(root)
    _name_shortly(root, prefix)
    for node in root.iter():
        for name, value in list(node.attrib.items()):
            if name == "d":
                node.set(name, _relative(value))
            elif name in _LENGTHS:
                node.set(name, _rounded(value))
        _place_by_attributes(node)
    rules = [
        set_theme(root, f"#{prefix}"),
        *(f"#{prefix} {rule}" for rule in _own_rules(root)),
        _styles_written_once(root, f"#{prefix} "),
    ]
    _unwrap(root)
    style = Element(f"{_SVG}style")
    style.text = "".join(rules)
    root.insert(0, style)
    _set_root(root, prefix, size)
    ElementTree.register_namespace("", _SVG[1:-1])
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>").encode()


def _set_root(root: Element, prefix: str, size: tuple[int, int]) -> None:
    box = root.attrib.get("viewBox", "")
    root.attrib.clear()
    width, height = map(str, size)
    root.attrib.update({"id": prefix, "viewBox": box, "width": width, "height": height})
    root.set("font-family", FAMILIES)
    for text in root.iter(TEXT):
        text.set("aria-hidden", "true")


def _drop(node: Element) -> None:
    for child in list(node):
        if child.tag == f"{_SVG}metadata":
            node.remove(child)
            continue
        _drop(child)
        child.tail = None
    if len(node):
        node.text = None


def _own_rules(node: Element) -> list[str]:
    """Remove matplotlib's style sheets, which would also apply to the page, and return their rules."""
    rules: list[str] = []
    for child in list(node):
        if child.tag == f"{_SVG}style":
            node.remove(child)
            rules += [
                f"{rule}}}" for rule in (child.text or "").replace("; ", ";").split("}") if rule.strip()
            ]
        else:
            rules += _own_rules(child)
            if child.tag == f"{_SVG}defs" and not len(child):
                node.remove(child)
    return rules


def _name_shortly(root: Element, prefix: str) -> None:
    """Shorten the ids that other elements refer to, with `prefix` in front, and remove all other ids."""
    used: dict[str, str] = {}

    def short(name: str) -> str:
        return used.setdefault(name, prefix + _letters(len(used)))

    for node in root.iter():
        link = node.attrib.pop(f"{_XLINK}href", None)
        if link is not None:
            node.set("href", f"#{short(link[1:])}")
        for name in ("style", "clip-path", "fill"):
            if name in node.attrib:
                node.set(name, _USED.sub(lambda match: f"url(#{short(match[1])})", node.attrib[name]))
    for node in root.iter():
        own = node.attrib.pop("id", "")
        if own in used:
            node.set("id", used[own])


def _letters(number: int) -> str:
    """Return a short name for a number: a to z, then a0 to z0, a1 to z1, and so on."""
    return chr(ord("a") + number % 26) + (str(number // 26 - 1) if number >= 26 else "")


def _rounded(text: str) -> str:
    """Round the lengths in an attribute, but not the factors in `scale(...)`."""
    kept = _SCALE.findall(text)
    parts = [_NUMBER.sub(lambda match: _short(float(match[0])), part) for part in _SCALE.split(text)]
    return "".join(part + scale for part, scale in zip(parts, [*kept, ""], strict=True))


def _short(value: float) -> str:
    text = f"{round(value, _DECIMALS):.{_DECIMALS}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


@lru_cache(maxsize=4096)
def _relative(path: str) -> str:
    """Convert an SVG path to relative coordinates, rounded so that errors do not add up.

    Results are cached, because all figures share the outlines of letters.
    """
    x = y = begin_x = begin_y = 0.0
    steps: list[tuple[str, Sequence[float]]] = []
    for command, numbers in _COMMAND.findall(path):
        if command in "zZ":
            steps.append(("z", ()))
            x, y = begin_x, begin_y
            continue
        values = [round(float(word), _DECIMALS) for word in numbers.split()]
        moved = [value - (y if place % 2 else x) for place, value in enumerate(values)]
        x, y = values[-2:]
        if command == "M":
            begin_x, begin_y = x, y
        steps.append((command.lower(), moved))
    return "".join(
        letter + letter.join(_joined(values) for values in points)
        if letter == "m"  # further points after a move are lines
        else letter + _joined(itertools.chain.from_iterable(points))
        for letter, points in (
            (letter, [values for _, values in members])
            for letter, members in itertools.groupby(steps, key=lambda step: step[0])
        )
    )


def _joined(values: Iterable[float]) -> str:
    """Join numbers by commas, except before a minus sign, which separates numbers too."""
    text = ""
    for value in values:
        word = _short(value)
        text += word if not text or word.startswith("-") else f",{word}"
    return text


def _place_by_attributes(node: Element) -> None:
    """Replace the `translate` of a `use` element by `x` and `y`, which are shorter."""
    if node.tag != f"{_SVG}use" or "x" in node.attrib:
        return
    translation = _TRANSLATE.fullmatch(node.attrib.get("transform", ""))
    if translation:
        del node.attrib["transform"]
        for name, value in zip("xy", translation.groups(), strict=True):
            if value != "0":
                node.set(name, value)


def _styles_written_once(root: Element, scope: str) -> str:
    """Replace each repeated style by a class, and return the classes' rules within `scope`."""
    counts = Counter(
        node.attrib["style"] for node in root.iter() if "style" in node.attrib and node is not root
    )
    classes = {
        style: _letters(place)
        for place, style in enumerate(style for style, count in counts.most_common() if count > 1)
    }
    for node in root.iter():
        if node.attrib.get("style") in classes:
            node.set("class", classes[node.attrib.pop("style")])
    return "".join(
        f"{scope}.{name}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, name in classes.items()
    )


def _unwrap(node: Element) -> None:
    for child in node:
        _unwrap(child)
    content: list[Element] = []
    for child in node:
        plain = child.tag == f"{_SVG}g" and not child.attrib
        content += list(child) if plain else [child]
    node[:] = content
