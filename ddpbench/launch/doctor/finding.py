"""The result of a check, one per thing checked, with advice unless it is ok."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckLevel = Literal["ok", "note", "problem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The result for one thing checked.

    `ok`: nothing to do. `note`: training runs, but it or its numbers could be better.
    `problem`: some training that ddpbench offers fails here; with `blocks`, all of it.
    """

    topic: str = ""
    """The topic that lists this result; `carry_out` sets it."""
    subject: str
    level: CheckLevel
    found: str
    advice: str = ""
    """The remedy; never empty unless the level is ok."""
    blocks: bool = False

    def __post_init__(self) -> None:
        assert (self.level == "ok") == (not self.advice), f"{self.subject}: what is not ok needs an advice"


def ok(subject: str, found: str) -> CheckResult:
    """Return a finding of level ok."""
    return CheckResult(subject=subject, level="ok", found=found)


def note(subject: str, found: str, advice: str) -> CheckResult:
    """Return a finding of level note: training runs, but could be better."""
    return CheckResult(subject=subject, level="note", found=found, advice=advice)


def problem(subject: str, found: str, advice: str, *, blocks: bool = False) -> CheckResult:
    """Return a finding of level problem: some training fails, or all of it with `blocks`."""
    return CheckResult(subject=subject, level="problem", found=found, advice=advice, blocks=blocks)
