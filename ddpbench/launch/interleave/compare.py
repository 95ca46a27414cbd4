"""Measure two sides alternately and compare them, from the request to the result."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ddpbench.errors import LaunchError, OutputError, RequestError
from ddpbench.launch.interleave.own_files import with_checked_files, with_overrides
from ddpbench.launch.interleave.search import with_search
from ddpbench.launch.interleave.sides import (
    COPIES,
    Placed,
    SideSpec,
    check_there,
    place,
    same_code,
    without_order,
)
from ddpbench.launch.interleave.turns import FILE, TurnKind, Turns, read_comparison
from ddpbench.machine.hardware import read_hardware
from ddpbench.records import RunDir
from ddpbench.records.rundir import Made, checked_name, default_path, explain_os_error, make_dir
from ddpbench.spec.matching import fields_apart
from ddpbench.spec.settings import MOST_INTERLEAVED_ROUNDS

if TYPE_CHECKING:
    from ddpbench.analysis.regression import Change, Changes


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonRequest:
    """A request for a comparison.

    If `limit` (a fraction) is given, rounds end once each change is above or below it.
    """

    experiment: Path
    base: SideSpec
    new: SideSpec
    overrides: Sequence[str] = ()
    out: Path | None = None
    code: Path | None = None
    """The folder whose subfolder `.code` keeps commits' files, so that they can be reused. None stands for `out`."""
    total_s: float
    fewest: int
    limit: float | None = None
    rare: bool = True
    """True to run enough rounds to detect a slow-down that affects few rounds; False to judge typical rounds only."""
    alpha: float = 0.05
    """The joint error probability of all verdicts."""
    turns: TurnKind = "blocks"


class ComparisonListener(Protocol):
    """Receives the comparison's progress."""

    def begun(self, out: Path) -> None:
        """Handle the start of a comparison in the directory `out`."""

    def event(self, text: str) -> None:
        """Handle a sentence about an event. Each event is reported once."""

    def round_made(self, number: int, left_s: float) -> None:
        """Handle the end of a round, which both sides have run."""


def check_empty(out: Path) -> None:
    """Check that an output directory is empty or does not exist.

    Raises:
        OutputError: the path holds something, or is not a directory.
    """
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file: choose another --out")
    if out.exists() and any(out.iterdir()):
        raise OutputError(f"{out} is not empty: choose another --out")


def interleave(asked: ComparisonRequest, listener: ComparisonListener) -> Changes:
    """Measure both sides alternately until each case is decided or the time is spent; return the changes.

    Raises:
        RequestError: a side's code is missing, the side cannot start, or the sides' cases cannot be matched.
        LaunchError: a side cannot continue, or no case of it can be measured.
        OutputError: the directory cannot be written, or holds something else.
    """
    if asked.fewest > MOST_INTERLEAVED_ROUNDS:
        raise RequestError(f"--rounds {asked.fewest}: must be {MOST_INTERLEAVED_ROUNDS} at most")
    if asked.experiment.is_dir():
        raise RequestError(f"{asked.experiment} is a run directory: give --interleave an experiment instead")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    out = checked_name(asked.out or default_path(f"compare-{asked.experiment.stem}-{stamp}"))
    check_empty(out)
    for side in (asked.base, asked.new):
        check_there(side)
    made = _made(out)
    try:
        sides = _placed(asked, asked.code or out)
        listener.begun(out)
        for placed in sides:
            for note in placed.notes:
                listener.event(note)
        if note := same_code(*sides):
            listener.event(note)
        own = (
            *(
                f"budget.rounds_min={asked.fewest}",
                f"budget.rounds_max={MOST_INTERLEAVED_ROUNDS}",
                'budget.total="24 h"',
            ),
        )
        seed = random.SystemRandom().randrange(2**31)
        order = f"budget.seed={seed}"  # the same for both sides, so that their launches of a case overlap
        cores = read_hardware().cores
        turns = Turns(sides, out, listener, (order, *own), asked.turns, cores)
    except (RequestError, KeyboardInterrupt):
        made.remove()
        raise

    def enough() -> bool:
        return all(
            _decided(change, asked.limit, rare=asked.rare) for change in changes_in(out, asked.alpha).changes
        )

    try:
        turns.measure(asked.total_s, enough, rounds=(asked.fewest, MOST_INTERLEAVED_ROUNDS), seed=seed)
    except (RequestError, KeyboardInterrupt):  # a side cannot start, or the sides do not match
        if not turns.made:
            made.remove()
        raise
    if not turns.made:
        logs = ", ".join(dict.fromkeys(str(log.parent) for log in sorted(out.glob("*/cases/*/proof/*.log"))))
        raise LaunchError(
            f"one side has no case that can be measured{f': see the logs in {logs}' if logs else ''}"
        )
    return changes_in(out, asked.alpha)


def _placed(asked: ComparisonRequest, code: Path) -> tuple[Placed, Placed]:
    """Prepare the code of both sides; commits are written below `code`.

    Raises:
        RequestError: a side's code is missing, or both sides would share a user's file.
        OutputError: the code cannot be written.
    """
    base, new = asked.base, asked.new
    overrides = without_order(asked.overrides)
    sides = (
        with_overrides(place(base, asked.experiment, code, new), overrides),
        with_overrides(place(new, asked.experiment, code, base), overrides),
    )
    return with_checked_files(with_search(sides))


def _made(out: Path) -> Made:
    """Create the output directory, and record what was created, for its removal.

    Raises:
        OutputError: the directory cannot be created, or is not empty.
    """
    try:
        return make_dir(out, {"base", "new", COPIES, FILE}.__contains__)
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {explain_os_error(error)}") from None


def _decided(change: Change, limit: float | None, *, rare: bool = True) -> bool:
    """Return whether the change is decided, or no round could decide it."""
    if change.verdict == "not comparable":
        return True
    if limit is None:
        return change.verdict != "cannot tell"
    return change.beyond(limit) or (change.within(limit) and (change.shows_rare or not rare))


def changes_in(out: Path, alpha: float = 0.05) -> Changes:
    """Return the changes at confidence `1 - alpha`, computed from the rounds in a comparison's directory.

    Raises:
        RequestError: the directory holds no comparison.
        IdentityError: the comparison is damaged, or a side has no measurements.
    """
    from ddpbench.analysis.regression import changes_of, read_side, unlike

    stored = read_comparison(out)
    base = read_side(RunDir(out / "base"), stored.base.words, commit=stored.base.commit)
    new = read_side(RunDir(out / "new"), stored.new.words, commit=stored.new.commit)
    apart = fields_apart(stored.base.overrides, stored.new.overrides)
    changes = changes_of(base, new, paired=True, alpha=alpha, differing=apart, unlike=unlike(base, new))
    return replace(changes, foreign=tuple(stored.foreign), turns=stored.turns)
