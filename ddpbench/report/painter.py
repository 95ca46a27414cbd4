"""A second process that draws half of a page's figures: drawing is most of a report's time, and needs one core.

    python -m ddpbench.report.painter    # pictures come in on standard input, pickled; drawings go out

It is started before the analysis, so that matplotlib is imported by the time there is something to draw.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from ddpbench.report.canvas import Drawn, draw
from ddpbench.report.parts import Picture

WORTH_SHARING = 4
"""Fewer figures are drawn here: handing them over costs as much as drawing one."""


class Painter(AbstractContextManager["Painter"]):
    """Draws pictures, half of them elsewhere where there is a second core. What fails elsewhere is drawn here."""

    def __init__(self, cores: int | None = None) -> None:
        """`cores` None: as many as this process may use."""
        self._process: subprocess.Popen[bytes] | None = None
        if (len(os.sched_getaffinity(0)) if cores is None else cores) < 2:
            return
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ddpbench.report.painter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
        )

    def draw(self, pictures: Sequence[Picture]) -> list[Drawn]:
        """The pictures drawn, in their order."""
        if self._process is None or len(pictures) < WORTH_SHARING:
            return [draw(picture) for picture in pictures]
        here = (len(pictures) + 1) // 2
        process, self._process = self._process, None
        assert process.stdin is not None
        try:
            pickle.dump(list(pictures[here:]), process.stdin)
            process.stdin.flush()
        except (OSError, pickle.PicklingError, AttributeError, TypeError):
            process.kill()
        drawn = [draw(picture) for picture in pictures[:here]]
        answer, _ = process.communicate()
        if process.returncode != 0:
            return drawn + [draw(picture) for picture in pictures[here:]]
        elsewhere: list[Drawn] = pickle.loads(answer)
        return drawn + elsewhere

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def main() -> None:
    """Draws what comes in, and ends; the end of the input ends it too."""
    import matplotlib.figure  # noqa: F401 - while the parent is still reading

    try:
        pictures: list[Picture] = pickle.load(sys.stdin.buffer)
    except EOFError:
        return
    pickle.dump([draw(picture) for picture in pictures], sys.stdout.buffer)


if __name__ == "__main__":
    main()
