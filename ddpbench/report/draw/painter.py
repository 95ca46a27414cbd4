"""A second process that draws most of a page's figures: drawing is most of a report's time, and needs one core.

It is started before the analysis, which it shares too: records are read by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType

from ddpbench.helper_process import Beside, second_core
from ddpbench.report.draw.canvas import Drawn, draw
from ddpbench.report.parts import Picture

WORTH_SHARING = 4
"""Fewer figures are drawn here: handing them over costs as much as drawing one."""
WORTH_STARTING = 5
"""Cases: a run of fewer has few figures, which are drawn before a second process has imported what it draws with."""
SHARE_HERE = 0.4
"""Of the figures; this process makes the page's tables and data too."""
_IMPORTED_EARLY = ("ddpbench.analysis.read.reading", "ddpbench.report.draw.painter", "matplotlib.figure")
"""By the second process, in the order of their use: it reads records too."""


class Painter(AbstractContextManager["Painter"]):
    """Draws pictures, most of them elsewhere where there is a second core. What fails elsewhere is drawn here."""

    def __init__(self, cases: int) -> None:
        """`cases` is how many the run has, planned or measured."""
        worth = cases >= WORTH_STARTING and second_core()
        self.beside = Beside(*_IMPORTED_EARLY) if worth else None
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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.beside is not None:
            self.beside.__exit__(kind, value, trace)


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
