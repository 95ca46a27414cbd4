"""The allocation page as Markdown, LaTeX and a picture: the same words and numbers in each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddpbench.analysis.scaling.allocation import Allocation
from ddpbench.errors import OutputError
from ddpbench.records import explain_os_error, write_atomically
from ddpbench.records.files import new_folder
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
    contents: list[str | bytes] = [markdown(allocation), latex(allocation), draw(picture(allocation)).png]
    try:
        with new_folder(folder):
            _write_all(dict(zip(paths, contents, strict=True)))
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {explain_os_error(error)}") from None
    return paths


def _write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Write these files; of those that are new none is left where one cannot be written.

    Raises:
        OSError: one cannot be written.
    """
    new = [path for path in contents if not path.exists()]
    try:
        for path, content in contents.items():
            write_atomically(path, content)
    except OSError:
        for path in new:
            path.unlink(missing_ok=True)
        raise
