"""Write a proposal's page as Markdown, LaTeX and a picture, with the same words and numbers in each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddpbench.errors import OutputError, UnreadableError
from ddpbench.features.allocation.analysis.allocation import Allocation
from ddpbench.features.allocation.report.figure import picture
from ddpbench.features.allocation.report.latex_page import latex
from ddpbench.features.allocation.report.markdown_page import markdown
from ddpbench.records import explain_os_error, write_atomically
from ddpbench.records.files import MOST_NOTES, read_bytes
from ddpbench.records.held import new_folder

_WRITTEN = ".allocation.sha256"
"""The file with digests of the written pages, by which a page that the user has edited is recognized."""


def write_allocation(allocation: Allocation, folder: Path) -> list[Path]:
    """Write `allocation.md`, `allocation.tex` and `allocation.png`; return their paths.

    Raises:
        OutputError: the folder cannot be written; or one of the files was edited, or belongs to another program.
    """
    from ddpbench.report.draw.canvas import draw

    names = [f"allocation.{ending}" for ending in ("md", "tex", "png")]
    contents: list[str | bytes] = [markdown(allocation), latex(allocation), draw(picture(allocation)).png]
    try:
        with new_folder(folder) as held:
            _write_all(held, {held / name: _bytes(one) for name, one in zip(names, contents, strict=True)})
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {explain_os_error(error)}") from None
    return [folder / name for name in names]


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_unchanged(contents: Mapping[Path, bytes], written: str) -> None:
    """Refuse to replace files that users edited after ddpbench wrote them.

    Raises:
        OutputError: a file was edited.
        OSError: a file cannot be read.
    """
    for path, content in contents.items():
        with suppress(FileNotFoundError, UnreadableError):  # a link is replaced, and its target left as it is
            old = read_bytes(path, MOST_NOTES)
            if old != content and _digest(old) not in written:
                raise OutputError(
                    f"{path} was changed after ddpbench wrote it, and would be lost: rename it, or give another --out"
                )


def _write_all(folder: Path, contents: Mapping[Path, bytes]) -> None:
    record, written = folder / _WRITTEN, ""
    with suppress(FileNotFoundError, UnreadableError):
        written = read_bytes(record, MOST_NOTES).decode("ascii", "replace")
    _check_unchanged(contents, written)
    new = [path for path in (*contents, record) if not path.exists()]
    digests = [f"{_digest(content)}  {path.name}\n" for path, content in contents.items()]
    try:
        write_atomically(
            record, written + "".join(digests)
        )  # old and new digests, in case the process is killed before all is written
        for path, content in contents.items():
            write_atomically(path, content)
        write_atomically(record, "".join(digests))
    except OSError:
        for path in new:
            path.unlink(missing_ok=True)
        raise
