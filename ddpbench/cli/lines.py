"""Print lines that fit a terminal, with aligned columns and whole words, and without control characters."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TextIO

from ddpbench.progress import OnProgress
from ddpbench.text_safety import JOINT, clean, on_one_line

WIDEST = 100
"""Maximum number of columns to print, even if the terminal is wider."""
_NARROWEST = 60
_PATIENCE_S = 1.0
"""Seconds of work before progress is shown."""
_REDRAWN_S = 0.2
_NO_BREAK = "\N{NO-BREAK SPACE}"
_LINE_COMMAND = re.compile(r"^([^\S\n]*+):(?=:)", re.MULTILINE)
"""Start of a line that GitHub Actions would carry out as a command, such as `::stop-commands::TOKEN`."""
_QUOTED_WORD = re.compile(r"""(?<![^\s(=])(?:\$'(?:[^'\\]|\\.)*+'|'[^']*+'(?:"'"'[^']*+')*+)""")
"""Matches a word of a command line that `texts.quoted` has quoted."""


def columns_here(stream: TextIO | None = None) -> int:
    """Return how many columns to print: `COLUMNS` or the terminal's width, limited to `_NARROWEST` to `WIDEST`.

    If neither is known, it is `WIDEST`.
    """
    asked = os.environ.get("COLUMNS", "")
    here = int(asked[:9]) if asked.isdecimal() and int(asked[:9]) else WIDEST
    if here == WIDEST:
        with suppress(OSError, ValueError):
            here = os.get_terminal_size((stream or sys.stdout).fileno()).columns or WIDEST
    return max(_NARROWEST, min(WIDEST, here))


_broken: dict[str, str] = {}
"""The printed text of each part of a command-line path that contains a line break."""


def note_words(words: Collection[str]) -> None:
    """Print these command-line paths on one line from now on, even if they contain line breaks."""
    _broken.clear()
    parts = {part for word in words if "\n" in word or "\r" in word for part in word.split("/")}
    for part in sorted(parts, key=len, reverse=True):
        if part != on_one_line(part):
            _broken[part] = on_one_line(part)


def show(*texts: object, end: str = "\n", file: TextIO | None = None) -> None:
    """Print texts, one per line. Control characters, and characters that the terminal cannot write, are replaced."""
    stream = file or sys.stdout
    text = _LINE_COMMAND.sub(r"\1: ", clean(_named_on_one_line("\n".join(map(str, texts)))))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), end=end, file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:  # print's error names no file
        error.filename = error.filename or ("standard error" if stream is sys.stderr else "standard output")
        raise


def _named_on_one_line(text: str) -> str:
    for name, shown in _broken.items():
        text = text.replace(name, shown)
    return text


def say(text: str, stream: TextIO | None = None, *, indent: int = 2) -> None:
    """Print sentences. On a terminal they wrap between words; elsewhere, for other programs, each is one line."""
    stream = stream or sys.stdout
    for line in clean(_named_on_one_line(text)).split("\n"):
        before = len(line) - len(line.lstrip())
        lines = wrapped(line, columns_here(stream), before + indent) if stream.isatty() else [line]
        show(*lines, file=stream)


class PassingLine(AbstractContextManager[OnProgress]):
    """Shows the progress of long work in one terminal line, which is removed at the end; prints nothing elsewhere."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._due = clock() + _PATIENCE_S
        self._shown = False

    def __enter__(self) -> OnProgress:
        return self._tell

    def _tell(self, what: str, done: int, of: int) -> None:
        if self._clock() < self._due or not self._stream.isatty():
            return
        counted = f": {done:,} of {of:,}" if of else ""
        self._write(f"\r{clean(f'{what}{counted}')[: columns_here(self._stream) - 1]}\x1b[K")
        self._due, self._shown = self._clock() + _REDRAWN_S, True

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def aligned(
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    left: Collection[int] = (0,),
    breakable: Collection[int] = (0,),
    gaps: Sequence[str] = ("  ", " "),
) -> list[str]:
    """Return rows as lines with aligned columns. Columns in `left` are aligned left, the others right.

    Rows wider than `width` wrap cells of the `breakable` columns, the widest first, and then take narrower `gaps`. Rows
    may still be too wide.
    """
    lines: list[str] = []
    rows = [[on_one_line(cell) for cell in row] for row in rows]
    for gap in gaps:
        lines = _in_columns(rows, width, left, breakable, gap)
        if max(map(len, lines)) <= width:
            break
    return lines


def _in_columns(
    rows: Sequence[Sequence[str]], width: int, left: Collection[int], breakable: Collection[int], gap: str
) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    over = sum(widths) + len(gap) * (len(widths) - 1) - width
    least = {column: max(_least(row[column]) for row in rows) for column in breakable}
    while over > 0 and (able := [column for column in breakable if widths[column] > least[column]]):
        widths[max(able, key=widths.__getitem__)] -= 1
        over -= 1
    lines: list[str] = []
    for row in rows:
        cells = [
            broken(cell, widths[column]) if column in breakable else [cell] for column, cell in enumerate(row)
        ]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            padded = [
                f"{part:<{size}}" if column in left else f"{part:>{size}}"
                for column, (part, size) in enumerate(zip(parts, widths, strict=True))
            ]
            lines.append(gap.join(padded).rstrip())
    return lines


def broken(label: str, width: int) -> list[str]:
    """Break a case's name into lines: between its parts if each part fits into a line, otherwise between words."""
    lines = [""]
    for part in label.split(JOINT):
        joined = f"{lines[-1]}{JOINT}{part}" if lines[-1].strip() else f"{lines[-1]}{part}"
        if len(joined) <= width:
            lines[-1] = joined
        else:
            first = "" if lines == [""] else "  "
            lines += wrapped(f"{first}{part}", width, indent=2)
    return [line for line in lines if line.strip()] or [""]


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Wrap text into lines between words, but not between a number and its unit."""
    lines = textwrap.wrap(
        _held(text), width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines] or [""]


def _least(label: str) -> int:
    """Return the smallest width at which no word of a case's name is broken."""
    return max((len(word) + 2 for word in _held(label).split(" ")), default=0)


def _held(text: str) -> str:
    """Use no-break spaces after numbers and in quoted words of a command line."""
    held = _QUOTED_WORD.sub(lambda word: word[0].replace(" ", _NO_BREAK), text)
    return re.sub(r"(?<=\d) (?=[^\s\d])", _NO_BREAK, held)
