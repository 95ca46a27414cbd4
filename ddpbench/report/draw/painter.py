"""A second process that draws most of a page's figures: drawing is most of a report's time, and needs one core.

It is started before the analysis, which it shares too (`ddpbench.helper_process.for_report`): records are read by both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import Condition, Thread

from ddpbench.helper_process import Beside
from ddpbench.report.draw.canvas import Drawn, draw
from ddpbench.report.parts import Picture

WORTH_SHARING = 4
"""Fewer figures are drawn here: handing them over costs as much as drawing one."""


class Painter:
    """Draws pictures, some of them elsewhere where there is a second core. What fails elsewhere is drawn here.

    The second process draws one after another as soon as they are there; this one joins in when it wants them drawn.
    """

    def __init__(self, beside: Beside | None = None) -> None:
        """`beside` is the second process, which its maker ends; None: there is none."""
        self.beside = beside
        self._pictures: list[Picture] = []
        self._drawn: dict[int, Drawn] = {}
        self._waiting: deque[int] = deque()
        self._changed = Condition()
        self._complete = False
        self._sharing: Thread | None = None

    def add(self, pictures: Iterable[Picture]) -> None:
        """Hands over pictures that are to be drawn, after those before; `drawn` gives all."""
        more = list(pictures)
        with self._changed:
            for picture in more:
                self._waiting.append(len(self._pictures))
                self._pictures.append(picture)
            self._changed.notify()
        if self.beside is not None and self._sharing is None and len(self._pictures) >= WORTH_SHARING:
            self._sharing = Thread(target=self._share, args=(self.beside,), daemon=True)
            self._sharing.start()

    def drawn(self) -> list[Drawn]:
        """Return all pictures drawn, in their order."""
        with self._changed:
            self._complete = True
            self._changed.notify()
        while (index := self._next_here()) is not None:
            (self._drawn[index],) = draw_all([self._pictures[index]])
        if self._sharing is not None:
            self._sharing.join()
        for index, picture in enumerate(self._pictures):
            if index not in self._drawn:
                (self._drawn[index],) = draw_all([picture])
        return [self._drawn[index] for index in range(len(self._pictures))]

    def _next_here(self) -> int | None:
        """Return the last that waits, since the second process began with the first; None where none does."""
        with self._changed:
            return self._waiting.pop() if self._waiting else None

    def _share(self, beside: Beside) -> None:
        """Has the second process draw what waits, until there is no more, or it fails."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._complete)
                if not self._waiting:
                    return
                index = self._waiting.popleft()
            beside.ask(draw_all, [self._pictures[index]])
            answer: list[Drawn] | None = beside.answer()
            if answer is None:
                return
            (self._drawn[index],) = answer


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
