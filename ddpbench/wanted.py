"""The files wanted of a report's pictures. Light: the command line reads it before it loads what makes them."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("png", "svg", "pdf")
"""Formats of a picture's files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The files wanted of each picture, next to the page's own: formats of its figure, and of its slide.

    Every picture that is written at all is written as png, too.
    """

    figures: frozenset[str] = frozenset({"png"})
    slides: frozenset[str] = frozenset()


ONLY_PNG = Wanted()
