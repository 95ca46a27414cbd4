"""Where the class stands in the script."""

from __future__ import annotations

from ddpbench.errors import RequestError
from ddpbench.launch.own_class.script import Script

NAME = "Measured"


def place_of(script: Script) -> int:
    """Return the number of the line before which the class goes: above the guard and its comments, or after the end.

    Raises:
        RequestError: the script has such a class.
    """
    if NAME in script.classes:
        line = script.classes[NAME].lineno
        raise RequestError(f"{script.path} already has a class {NAME}, in line {line}")
    lines = script.source.splitlines()
    if script.guard is None:
        return len(lines) + 1
    line = script.guard.lineno
    while line > 1 and lines[line - 2].startswith("#"):
        line -= 1
    return line


def inserted(script: Script, text: str) -> str:
    """Return the script's source with the class in it, its line ends those of the script."""
    place = place_of(script)
    lines = script.source.splitlines()
    before, after = lines[: place - 1], lines[place - 1 :]
    while before and not before[-1].strip():
        before.pop()
    parts = [*before, *([""] * 2 if before else []), *text.rstrip().splitlines()]
    ends = "\r\n" if "\r\n" in script.source else "\n"
    return ends.join([*parts, *(["", "", *after] if after else [])]) + ends
