"""The file formats in which to write a report's pictures. The command line needs this, so it imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("png", "svg", "pdf")
"""All file formats in which pictures can be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureFormats:
    """File formats in which to write figures and slides, in addition to those that the page needs.

    A picture in any of these formats is also written as png.
    """

    figures: frozenset[str] = frozenset({"png"})
    slides: frozenset[str] = frozenset()


ONLY_PNG = PictureFormats()
