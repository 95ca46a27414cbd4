"""A second process that draws most of a page's figures: drawing is most of a report's time, and needs one core.

It is started before the analysis, which it shares too (`ddpbench.helper_process.for_report`): records are read by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpbench.helper_process import Beside
from ddpbench.report.draw.canvas import Drawn, draw
from ddpbench.report.parts import Picture

WORTH_SHARING = 4
"""Fewer figures are drawn here: handing them over costs as much as drawing one."""
SHARE_HERE = 0.45
"""Of the figures; this process makes the page's tables and data too."""


class Painter:
    """Draws pictures, most of them elsewhere where there is a second core. What fails elsewhere is drawn here."""

    def __init__(self, beside: Beside | None = None) -> None:
        """`beside` is the second process, which its maker ends; None: there is none."""
        self.beside = beside
        self._here: list[Picture] = []
        self._there: list[Picture] = []

    def start(self, pictures: Sequence[Picture]) -> None:
        """Hands over the second process's part; `drawn` gives all."""
        self._here, self._there = list(pictures), []
        if self.beside is not None and len(pictures) >= WORTH_SHARING:
            count = round(SHARE_HERE * len(pictures))
            self._here, self._there = self._here[:count], self._here[count:]
            self.beside.ask(draw_all, self._there)

    def drawn(self) -> list[Drawn]:
        """Return the pictures of `start` drawn, in their order: the rest here, then what the second process made."""
        drawn = draw_all(self._here)
        if not self._there or self.beside is None:
            return drawn
        answer: list[Drawn] | None = self.beside.answer()
        return drawn + (draw_all(self._there) if answer is None else answer)


def draw_all(pictures: Sequence[Picture]) -> list[Drawn]:
    """Return the pictures drawn, by this process."""
    return [_with_slides(picture, draw(picture)) for picture in pictures]


def _with_slides(picture: Picture, drawn: Drawn) -> Drawn:
    if not picture.wanted.slides:
        return drawn
    from ddpbench.report.draw.slide import draw_slide

    slides = draw_slide(picture, sorted(picture.wanted.slides))
    files = {f"slides/{picture.file_name}.{kind}": content for kind, content in slides.items()}
    return replace(drawn, files={**drawn.files, **files})
