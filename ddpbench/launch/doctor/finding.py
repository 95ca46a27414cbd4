"""What a check has to say: one finding each thing looked at, with what to do unless all is well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    `ok`: nothing to do. `note`: training runs, and something about it or its numbers could be better.
    `problem`: some training that ddpbench offers fails here; with `blocks`, all of it.
    """

    topic: str = ""
    """The heading it stands under; the table of checks gives it."""
    subject: str
    level: Level
    found: str
    advice: str = ""
    """What to do; never empty unless the level is ok."""
    blocks: bool = False

    def __post_init__(self) -> None:
        assert (self.level == "ok") == (not self.advice), f"{self.subject}: what is not ok needs an advice"


def ok(subject: str, found: str) -> Finding:
    """Return all is well."""
    return Finding(subject=subject, level="ok", found=found)


def note(subject: str, found: str, advice: str) -> Finding:
    """It runs, but."""
    return Finding(subject=subject, level="note", found=found, advice=advice)


def problem(subject: str, found: str, advice: str, *, blocks: bool = False) -> Finding:
    """Some training fails, or with `blocks` all."""
    return Finding(subject=subject, level="problem", found=found, advice=advice, blocks=blocks)
