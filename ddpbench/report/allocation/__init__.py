"""The allocation page as Markdown, LaTeX and a picture: the same words and numbers in each."""

from __future__ import annotations

from pathlib import Path

from ddpbench.analysis.scaling.allocation import Allocation
from ddpbench.errors import OutputError
from ddpbench.records import explain_os_error, write_atomically
from ddpbench.report.allocation.figure import picture
from ddpbench.report.allocation.latex_page import latex
from ddpbench.report.allocation.markdown_page import markdown


def write_allocation(allocation: Allocation, folder: Path) -> list[Path]:
    """Writes `allocation.md`, `allocation.tex` and `allocation.png`; returns their paths.

    Raises:
        OutputError: the folder cannot be written.
    """
    from ddpbench.report.draw.canvas import draw

    paths = [folder / f"allocation.{ending}" for ending in ("md", "tex", "png")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(paths[0], markdown(allocation))
        write_atomically(paths[1], latex(allocation))
        write_atomically(paths[2], draw(picture(allocation)).png)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {explain_os_error(error)}") from None
    return paths
