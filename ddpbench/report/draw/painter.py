"""A second process that draws many of a page's figures: drawing is most of a report's time, and needs one core.

It is started before the analysis, which it shares too (`ddpbench.helper_process.for_report`): records are read by both.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Thread

from ddpbench.cache import code_stamp, keep, kept
from ddpbench.helper_process import Beside
from ddpbench.report.draw.canvas import Drawn, draw
from ddpbench.report.parts import ONLY_PNG, Picture
from ddpbench.telling import Told, to_nobody

WORTH_SHARING = 4
"""Fewer figures are drawn here: handing them over costs as much as drawing one."""


class Painter:
    """Draws pictures, here and in a second process where there is a second core: who is free takes the next.

    What fails elsewhere is drawn here. What the same code drew before is taken from the user's cache.
    """

    def __init__(self, beside: Beside | None = None, told: Told = to_nobody) -> None:
        """`beside` is the second process, which its maker ends; None: there is none. It is `told` what is drawn."""
        self.beside = beside
        self._told = told
        self._pictures: Sequence[Picture] = ()
        self._left: deque[int] = deque()
        self._drawn: dict[int, Drawn] = {}
        self._names: dict[int, str] = {}
        """In the cache, of those that are drawn now."""
        self._code = b""
        self._dealing: Thread | None = None

    def start(self, pictures: Sequence[Picture]) -> None:
        """Has the second process begin, at the end; `drawn` gives all."""
        assert self._dealing is None, "`drawn` comes before another start"
        self._pictures, self._code = pictures, code_stamp()
        self._names = (
            {number: _name(picture) for number, picture in enumerate(pictures)} if self._code else {}
        )
        held = ((number, kept(name, self._code)) for number, name in self._names.items() if name)
        self._drawn = {number: one for number, one in held if one is not None}
        for number in self._drawn:
            del self._names[number]
        self._left = deque(number for number in range(len(pictures)) if number not in self._drawn)
        if self.beside is not None and len(self._left) >= WORTH_SHARING:
            self._dealing = Thread(target=self._deal, args=(self.beside,), daemon=True)
            self._dealing.start()

    def _deal(self, beside: Beside) -> None:
        """Hand over one picture after another, until none is left or one cannot be drawn there."""
        while self._left:
            try:
                number = self._left.pop()
            except IndexError:  # it was taken in between
                return
            answer: list[Drawn] | None = None
            with suppress(Exception):
                beside.ask(draw_all, [self._pictures[number]])
                answer = beside.answer()
            if answer is None:
                return  # `drawn` finds that it is missing
            (self._drawn[number],) = answer

    def drawn(self) -> list[Drawn]:
        """Return the pictures of `start` drawn, in their order, once neither process has one left."""
        while self._left:
            self._told("drawing figures", len(self._drawn), len(self._pictures))
            try:
                number = self._left.popleft()
            except IndexError:
                break
            (self._drawn[number],) = draw_all([self._pictures[number]])
        if self._dealing is not None:
            self._dealing.join()
            self._dealing = None
        found = []
        for number, picture in enumerate(self._pictures):
            if number not in self._drawn:  # it could not be drawn there
                (self._drawn[number],) = draw_all([picture])
            found.append(self._drawn[number])
        if self._code and self._code == code_stamp():
            for number, name in self._names.items():
                if name:
                    keep(name, self._code, found[number])
        return found


def _name(picture: Picture) -> str:
    """Return a digest of all that a picture is drawn from; empty where it holds what cannot be written down."""
    wanted = picture.wanted
    try:
        # sets come in another order in each process
        told = (replace(picture, wanted=ONLY_PNG), sorted(wanted.figures), sorted(wanted.slides))
        file = io.BytesIO()
        pickler = pickle.Pickler(file)
        pickler.fast = True  # equal texts are written alike, be they one or copies, as of a run read again
        pickler.dump(told)
        return hashlib.sha256(file.getbuffer()).hexdigest() + ".figure"
    except Exception:
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
