"""Draws a page's figures in several processes: drawing is most of a report's time.

They are started before the analysis, which they share too (`ddpbench.helper_process.for_report`): all read records.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Sequence
from dataclasses import replace

from ddpbench.cache import code_stamp, keep, kept
from ddpbench.helper_process import NOBODY, Dealt, Others
from ddpbench.report.draw.canvas import Drawn, draw
from ddpbench.report.parts import Picture
from ddpbench.telling import Told, to_nobody
from ddpbench.wanted import ONLY_PNG

WORTH_SHARING = 4
"""Fewer figures are drawn here: handing them over costs as much as drawing one."""


class Painter:
    """Draws pictures, here and in other processes where there are cores for them: who is free takes the next.

    What fails elsewhere is drawn here. What the same code drew before is taken from the user's cache.
    """

    def __init__(self, others: Others = NOBODY, told: Told = to_nobody) -> None:
        """The `others` are ended by their maker. It is `told` what is drawn."""
        self.others = others
        self._told = told
        self._pictures: Sequence[Picture] = ()
        self._kept: dict[int, Drawn] = {}
        self._left: Sequence[int] = ()
        """Those that were not kept."""
        self._dealt: Dealt[Picture, Drawn] | None = None
        self._names: dict[int, str] = {}
        """In the cache, of those that are drawn now."""
        self._code = b""

    def start(self, pictures: Sequence[Picture]) -> None:
        """Has the other processes begin; `drawn` gives all."""
        assert self._dealt is None, "`drawn` comes before another start"
        self._pictures, self._code = pictures, code_stamp()
        names = {number: _name(picture) for number, picture in enumerate(pictures)} if self._code else {}
        held = ((number, kept(name, self._code)) for number, name in names.items() if name)
        self._kept = {number: one for number, one in held if one is not None}
        self._names = {number: name for number, name in names.items() if number not in self._kept}
        left = [number for number in range(len(pictures)) if number not in self._kept]
        # the longest first: of one that is begun last, all others would wait for the end
        self._left = sorted(left, key=lambda number: _area(pictures[number]), reverse=True)
        asked = [pictures[number] for number in self._left]
        self._dealt = Dealt(_drawn, asked, self.others if len(left) >= WORTH_SHARING else NOBODY)

    def drawn(self) -> list[Drawn]:
        """Return the pictures of `start` drawn, in their order, once no process has one left."""
        assert self._dealt is not None, "`start` comes before"
        before, count = len(self._kept), len(self._pictures)
        new = self._dealt.answers(lambda done: self._told("drawing figures", before + done, count))
        self._dealt = None
        by_number = {**self._kept, **dict(zip(self._left, new, strict=True))}
        found = [by_number[number] for number in range(count)]
        if self._code and self._code == code_stamp():
            for number, name in self._names.items():
                if name and not found[number].missing:  # a font for it may be installed next
                    keep(name, self._code, found[number])
        return found


def _area(picture: Picture) -> float:
    """Return about how long one takes to draw, in no unit."""
    return picture.width_in * picture.height_in


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

    slides = draw_slide(
        picture, sorted(picture.wanted.slides | {"png"})
    )  # of a figure, too, png is always written
    files = {f"slides/{picture.file_name}.{kind}": content for kind, content in slides.items()}
    return replace(drawn, files={**drawn.files, **files})
