"""The files wanted of a report's pictures. Light: the command line reads it before it loads what makes them."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("png", "svg", "pdf")
"""Formats of a picture's files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureFormats:
    """File formats to write for each figure and its slide, in addition to those that the page needs.

    Every picture that is written is written as png, too.
    """

    figures: frozenset[str] = frozenset({"png"})
    slides: frozenset[str] = frozenset()


ONLY_PNG = PictureFormats()
