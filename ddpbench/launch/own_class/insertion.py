"""Insert the generated class into a script, and move statements that would train at import below a `__main__` guard."""

from __future__ import annotations

import ast
import re
import tokenize
import warnings

from ddpbench.errors import RequestError
from ddpbench.launch.own_class.script import Script

NAME = "Measured"
GUARD = 'if __name__ == "__main__":'
_INDENT = "    "
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ENDS = "\r\n"


def lines_of(source: str) -> list[str]:
    """Return the lines of a Python source, with their line endings.

    Unlike `str.splitlines`, this splits only where Python does; for example, it does not split at a form feed.
    """
    return _LINE.findall(source)


def place_of(script: Script, ends: list[ast.stmt] | None = None) -> int:
    """Return the number of the line before which the generated class goes.

    That is above the guard `if __name__ == "__main__":` and its comments, above `ends` (to be moved below a new guard),
    or at the end.

    Raises:
        RequestError: the script already has a class with this name.
    """
    if NAME in script.classes:
        line = script.classes[NAME].lineno
        raise RequestError(f"{script.path} already has a class {NAME}, in line {line}")
    lines = lines_of(script.source)
    first = ends[0] if ends else script.guard
    if first is None:
        return len(lines) + 1
    line = first.lineno
    while line > 1 and lines[line - 2].startswith("#"):
        line -= 1
    return line


def inserted(script: Script, text: str, ends: list[ast.stmt] | None = None) -> str:
    """Return the script's source with the generated class (`text`) inserted, and the statements `ends` below a guard.

    Raises:
        RequestError: the result would not be valid Python.
    """
    place = place_of(script, ends)
    lines = lines_of(script.source)
    line_end = _end_of(lines, place)
    if ends:
        lines = _guarded(script, lines, place, ends)
    before, after = lines[: place - 1], lines[place - 1 :]
    while before and not before[-1].strip(" \t\r\n"):
        before.pop()
    if before and not before[-1].endswith(("\r", "\n")):
        before[-1] += line_end
    made = [*([""] * 2 if before else []), *text.rstrip().split("\n"), *([""] * 2 if after else [])]
    whole = "".join([*before, *(f"{line}{line_end}" for line in made), *after])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(whole, str(script.path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise RequestError(
            f"{script.path} would not be valid Python with the class in it ({error}): write the class "
            "by hand, as docs/own-loop.md shows"
        ) from error
    return whole


def _end_of(lines: list[str], place: int) -> str:
    ends = [line[len(line.rstrip(_ENDS)) :] for line in (*lines[max(0, place - 2) : place - 1], *lines[:1])]
    return next(filter(None, ends), "\n")


def can_guard(script: Script, ends: list[ast.stmt]) -> bool:
    """Return whether statements can be moved below `if __name__ == "__main__":` without changing their effect."""
    if not ends:
        return False
    if script.guard is not None and script.guard.lineno < (ends[-1].end_lineno or 0):
        return False  # a statement below the existing guard would then run before it
    if ends[0].col_offset or "\f" in script.source:
        return False
    lines = lines_of(script.source)
    try:
        made = ast.parse("".join(_guarded(script, lines, place_of(script, ends), ends)))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return False
    guards = [
        each for each in made.body if isinstance(each, ast.If) and each.lineno == place_of(script, ends)
    ]
    return bool(guards) and [ast.dump(each) for each in guards[0].body] == [ast.dump(each) for each in ends]


def _guarded(script: Script, lines: list[str], place: int, ends: list[ast.stmt]) -> list[str]:
    last = max(each.end_lineno or 0 for each in ends)
    inside = _inside_texts(lines)
    moved = [
        line if number in inside or not line.strip() else _INDENT + line
        for number, line in enumerate(lines[place - 1 : last], place)
    ]
    return [*lines[: place - 1], f"{GUARD}{_end_of(lines, place)}", *moved, *lines[last:]]


def _inside_texts(lines: list[str]) -> set[int]:
    found: set[int] = set()
    starts: list[int] = []
    for token in tokenize.generate_tokens(iter([f"{line.rstrip(_ENDS)}\n" for line in lines]).__next__):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            starts.append(token.start[0])
        elif name == "FSTRING_END":
            found |= set(range(starts.pop() + 1, token.end[0] + 1))
        elif name == "STRING":
            found |= set(range(token.start[0] + 1, token.end[0] + 1))
    return found
