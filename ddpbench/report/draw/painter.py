"""Draw a page's figures in several processes, because drawing takes most of a report's time."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Sequence
from dataclasses import replace

from ddpbench.cache import code_stamp, keep, kept
from ddpbench.helper_process import NOBODY, Dealt, Others
from ddpbench.picture_formats import ONLY_PNG
from ddpbench.progress import OnProgress, ignore_progress
from ddpbench.report.draw.canvas import DrawnPicture, draw
from ddpbench.report.parts import Picture

WORTH_SHARING = 4
"""Minimum number of figures for which other processes are used, because handing figures over takes time too."""


class Painter:
    """Draws pictures in this process and, if there are cores for them, in other processes.

    A picture that fails in another process is drawn again here. The user's cache has pictures that the same code drew
    before.
    """

    def __init__(self, others: Others = NOBODY, progress: OnProgress = ignore_progress) -> None:
        """Prepare to draw in this process and in the processes `others`, which the caller must end.

        `progress` is called with the number of pictures drawn.
        """
        self.others = others
        self._progress = progress
        self._pictures: Sequence[Picture] = ()
        self._kept: dict[int, DrawnPicture] = {}
        self._left: Sequence[int] = ()
        """Numbers of pictures that were not in the cache."""
        self._dealt: Dealt[Picture, DrawnPicture] | None = None
        self._names: dict[int, str] = {}
        """File names in the cache for the pictures that are now drawn, by the pictures' numbers."""
        self._code = b""

    def start(self, pictures: Sequence[Picture]) -> None:
        """Start to draw these pictures, if possible in the other processes. `drawn` then returns the results."""
        assert self._dealt is None, "`drawn` comes before another start"
        self._pictures, self._code = pictures, code_stamp()
        names = {number: _name(picture) for number, picture in enumerate(pictures)} if self._code else {}
        held = ((number, kept(name, self._code)) for number, name in names.items() if name)
        self._kept = {number: one for number, one in held if one is not None}
        self._names = {number: name for number, name in names.items() if number not in self._kept}
        left = [number for number in range(len(pictures)) if number not in self._kept]
        # the longest first: if it started last, all others would wait for it
        self._left = sorted(left, key=lambda number: _area(pictures[number]), reverse=True)
        asked = [pictures[number] for number in self._left]
        self._dealt = Dealt(_drawn, asked, self.others if len(left) >= WORTH_SHARING else NOBODY)

    def drawn(self) -> list[DrawnPicture]:
        """Wait until all pictures passed to `start` are drawn, and return the results in the same order."""
        assert self._dealt is not None, "`start` comes before"
        before, count = len(self._kept), len(self._pictures)
        new = self._dealt.answers(lambda done: self._progress("drawing figures", before + done, count))
        self._dealt = None
        by_number = {**self._kept, **dict(zip(self._left, new, strict=True))}
        in_order = [by_number[number] for number in range(count)]
        if self._code and self._code == code_stamp():
            for number, name in self._names.items():
                if name and not in_order[number].missing:  # a font for it may be installed later
                    keep(name, self._code, in_order[number])
        return in_order


def _area(picture: Picture) -> float:
    return picture.width_in * picture.height_in


def _name(picture: Picture) -> str:
    """Return a digest of the picture as its file name in the cache; empty if it cannot be pickled."""
    wanted = picture.wanted
    try:
        # the order of sets differs from process to process
        contents = (replace(picture, wanted=ONLY_PNG), sorted(wanted.figures), sorted(wanted.slides))
        file = io.BytesIO()
        pickler = pickle.Pickler(file)
        pickler.fast = True  # write equal texts alike, whether one object or copies
        pickler.dump(contents)
        return hashlib.sha256(file.getbuffer()).hexdigest() + ".figure"
    except Exception:
        return ""


def draw_all(pictures: Sequence[Picture]) -> list[DrawnPicture]:
    """Draw these pictures in this process, without the cache."""
    return [_drawn(picture) for picture in pictures]


def _drawn(picture: Picture) -> DrawnPicture:
    drawn = draw(picture)
    if not picture.wanted.slides:
        return drawn
    from ddpbench.report.draw.slide import draw_slide

    slides = draw_slide(picture, sorted(picture.wanted.slides | {"png"}))  # always png
    files = {f"slides/{picture.file_name}.{kind}": content for kind, content in slides.items()}
    return replace(drawn, files={**drawn.files, **files})
