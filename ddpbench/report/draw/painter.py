"""A second process that draws many of a page's figures: drawing is most of a report's time, and needs one core.

It is started before the analysis, which it shares too (`ddpbench.helper_process.for_report`): records are read by both.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from threading import Thread

from ddpbench.cache import cache_folder, code_stamp, keep, kept
from ddpbench.helper_process import Beside
from ddpbench.report.draw.canvas import Drawn, draw
from ddpbench.report.parts import Picture

WORTH_SHARING = 4
"""Fewer figures are drawn here: handing them over costs as much as drawing one."""


class Painter:
    """Draws pictures, here and in a second process where there is a second core: who is free takes the next.

    What fails elsewhere is drawn here. What the same code drew before is taken from the user's cache.
    """

    def __init__(self, beside: Beside | None = None) -> None:
        """`beside` is the second process, which its maker ends; None: there is none."""
        self.beside = beside
        self._left: deque[tuple[int, Picture]] = deque()
        self._drawn: dict[int, Drawn] = {}
        self._names: dict[int, str] = {}
        """In the cache, of those that are drawn now."""
        self._dealing: Thread | None = None

    def start(self, pictures: Sequence[Picture]) -> None:
        """Has the second process begin, at the end; `drawn` gives all."""
        self._left, self._drawn, self._names = deque(), {}, {}
        for number, picture in enumerate(pictures):
            name = _name(picture)
            found: Drawn | None = kept("figure", name, code_stamp()) if name else None
            if found is not None:
                self._drawn[number] = found
                continue
            self._left.append((number, picture))
            if name:
                self._names[number] = name
        if self.beside is not None and len(self._left) >= WORTH_SHARING:
            self._dealing = Thread(target=self._deal, args=(self.beside,), daemon=True)
            self._dealing.start()

    def _deal(self, beside: Beside) -> None:
        """Hand over one picture after another, until none is left or one cannot be drawn there."""
        while self._left:
            try:
                number, picture = self._left.pop()
            except IndexError:  # it was taken in between
                return
            beside.ask(draw_all, [picture])
            answer: list[Drawn] | None = beside.answer()
            if answer is None:
                self._left.append((number, picture))
                return
            (self._drawn[number],) = answer

    def _draw_here(self) -> None:
        while self._left:
            try:
                number, picture = self._left.popleft()
            except IndexError:
                return
            (self._drawn[number],) = draw_all([picture])

    def drawn(self) -> list[Drawn]:
        """Return the pictures of `start` drawn, in their order, once neither process has one left."""
        self._draw_here()
        if self._dealing is not None:
            self._dealing.join()
            self._dealing = None
            self._draw_here()  # what could not be drawn there
        for number, name in self._names.items():
            keep("figure", name, code_stamp(), self._drawn[number])
        return [self._drawn[number] for number in sorted(self._drawn)]


def _name(picture: Picture) -> str:
    """Return a digest of all that a picture is drawn from; empty where it holds what cannot be written down."""
    if cache_folder() is None:
        return ""
    try:
        return hashlib.sha256(pickle.dumps(picture)).hexdigest()
    except (pickle.PicklingError, AttributeError, TypeError):
        return ""


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
