"""The results of checks: each has a level, a description and, unless the level is ok, advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckLevel = Literal["ok", "note", "problem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The result of checking one thing (`subject`), whose state is `found`.

    `ok` needs nothing. With `note`, training runs, but could be faster or measured better. With `problem`, some
    training fails on this machine, or all training if `blocks` is set.
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
        assert (self.level == "ok") == (not self.advice), (
            f"{self.subject}: a finding that is not ok needs advice"
        )


def ok(subject: str, found: str) -> CheckResult:
    """Return a finding of level ok."""
    return CheckResult(subject=subject, level="ok", found=found)


def note(subject: str, found: str, advice: str) -> CheckResult:
    """Return a finding of level note, for training that runs but could be better."""
    return CheckResult(subject=subject, level="note", found=found, advice=advice)


def problem(subject: str, found: str, advice: str, *, blocks: bool = False) -> CheckResult:
    """Return a finding of level problem: some training fails on this machine, or all training if `blocks` is set."""
    return CheckResult(subject=subject, level="problem", found=found, advice=advice, blocks=blocks)
