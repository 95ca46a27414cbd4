"""A second process that draws many of a page's figures: drawing is most of a report's time, and needs one core.

It is started before the analysis, which it shares too (`ddpbench.helper_process.for_report`): records are read by both.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Sequence
from dataclasses import replace

from ddpbench.cache import code_stamp, keep, kept
from ddpbench.helper_process import Beside, Dealt
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
        self._kept: dict[int, Drawn] = {}
        self._others: Dealt[Picture, Drawn] | None = None
        self._names: dict[int, str] = {}
        """In the cache, of those that are drawn now."""
        self._code = b""

    def start(self, pictures: Sequence[Picture]) -> None:
        """Has the second process begin; `drawn` gives all."""
        assert self._others is None, "`drawn` comes before another start"
        self._pictures, self._code = pictures, code_stamp()
        names = {number: _name(picture) for number, picture in enumerate(pictures)} if self._code else {}
        held = ((number, kept(name, self._code)) for number, name in names.items() if name)
        self._kept = {number: one for number, one in held if one is not None}
        self._names = {number: name for number, name in names.items() if number not in self._kept}
        left = [picture for number, picture in enumerate(pictures) if number not in self._kept]
        self._others = Dealt(_drawn, left, self.beside if len(left) >= WORTH_SHARING else None)

    def drawn(self) -> list[Drawn]:
        """Return the pictures of `start` drawn, in their order, once neither process has one left."""
        assert self._others is not None, "`start` comes before"
        before, count = len(self._kept), len(self._pictures)
        others = iter(self._others.answers(lambda done: self._told("drawing figures", before + done, count)))
        self._others = None
        found = [self._kept[number] if number in self._kept else next(others) for number in range(count)]
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
    return [_drawn(picture) for picture in pictures]


def _drawn(picture: Picture) -> Drawn:
    drawn = draw(picture)
    if not picture.wanted.slides:
        return drawn
    from ddpbench.report.draw.slide import draw_slide

    slides = draw_slide(picture, sorted(picture.wanted.slides))
    files = {f"slides/{picture.file_name}.{kind}": content for kind, content in slides.items()}
    return replace(drawn, files={**drawn.files, **files})
