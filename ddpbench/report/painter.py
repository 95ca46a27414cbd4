"""A second process that draws half of a page's figures: drawing is most of a report's time, and needs one core.

It is started before the analysis, which it shares too: records are read by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from ddpbench.beside import Beside, second_core
from ddpbench.report.canvas import Drawn, draw
from ddpbench.report.parts import Picture

WORTH_SHARING = 4
"""Fewer figures are drawn here: handing them over costs as much as drawing one."""
_IMPORTED_EARLY = ("ddpbench.analysis.reading", "ddpbench.report.painter", "matplotlib.figure")
"""By the second process, in the order of their use: it reads records too."""


class Painter(AbstractContextManager["Painter"]):
    """Draws pictures, half of them elsewhere where there is a second core. What fails elsewhere is drawn here."""

    def __init__(self) -> None:
        self.beside = Beside(*_IMPORTED_EARLY) if second_core() else None

    def draw(self, pictures: Sequence[Picture]) -> list[Drawn]:
        """The pictures drawn, in their order."""
        if self.beside is None or len(pictures) < WORTH_SHARING:
            return draw_all(pictures)
        here = (len(pictures) + 1) // 2
        self.beside.ask(draw_all, list(pictures[here:]))
        drawn = draw_all(pictures[:here])
        answer: list[Drawn] | None = self.beside.answer()
        return drawn + (draw_all(pictures[here:]) if answer is None else answer)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.beside is not None:
            self.beside.__exit__(kind, value, trace)


def draw_all(pictures: Sequence[Picture]) -> list[Drawn]:
    """The pictures drawn, by this process."""
    return [draw(picture) for picture in pictures]
