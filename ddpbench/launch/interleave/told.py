"""A comparison that is measured in turn, from what was asked to what may be said."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ddpbench.errors import LaunchError, OutputError, RequestError, SideError
from ddpbench.launch.interleave.sides import COPIES, SideSpec, check_there, place, same_code, without_order
from ddpbench.launch.interleave.turns import FILE, Turn, Turns, read_comparison
from ddpbench.machine.hardware import read_hardware
from ddpbench.records import RunDir
from ddpbench.records.rundir import Made, checked_name, default_path, explain_os_error, make_dir
from ddpbench.spec import Case
from ddpbench.spec.overrides import whole_keys
from ddpbench.spec.settings import MOST_ROUNDS_IN_TURN

if TYPE_CHECKING:
    from ddpbench.analysis.regression import Change, Changes


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is to be measured. `limit` is the gate's, as a fraction: rounds end once each case is on one side of it."""

    experiment: Path
    base: SideSpec
    new: SideSpec
    overrides: Sequence[str] = ()
    out: Path | None = None
    code: Path | None = None
    """Where the files of commits go, in a folder `code`, or lie from before; None: into `out`."""
    total_s: float
    fewest: int
    limit: float | None = None
    rare: bool = True
    """Being within the limit takes rounds enough to see a slow-down of some of them; False: typical rounds decide."""
    alpha: float = 0.05
    """One minus the confidence of all verdicts together."""
    turns: Turn = "blocks"


class Listener(Protocol):
    """Who hears of it."""

    def begun(self, out: Path) -> None:
        """Told where it goes."""

    def event(self, text: str) -> None:
        """Told once."""

    def round_made(self, number: int, left_s: float) -> None:
        """Told after each round of both sides."""


def differing(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the fields of a case that a side's settings may change, which cases are not to be matched by."""
    names = {field.name for field in fields(Case)}
    found: set[str] = set()
    for key in (key for text in overrides for key in whole_keys(text)):
        section, dot, name = key.partition(".")
        if section == "options" or not dot:  # an option's bare name
            found |= {"options_json", "workload_options_json"}
        elif section == "env":
            found.add("env_json")
        elif section == "fabric":
            found |= {"fabric", "nodes", "ranks_per_node"}
        elif name in names:
            found.add(name)
    if found & {"local_batch", "global_batch", "scaling", "world_size"}:
        found |= {"local_batch", "global_batch"}
    return tuple(sorted(found))


def check_empty(out: Path) -> None:
    """Refuse a directory that holds something.

    Raises:
        OutputError: it does, or is none.
    """
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file: choose another --out")
    if out.exists() and any(out.iterdir()):
        raise OutputError(f"{out} is not empty: choose another --out")


def interleave(asked: Asked, listener: Listener) -> Changes:
    """Measure both sides in turn until each case is decided or the time is spent; return what may be said.

    Raises:
        RequestError: a side's code is nowhere, or it cannot begin.
        LaunchError: a side cannot go on.
        OutputError: the directory cannot be written, or holds something else.
    """
    if asked.fewest > MOST_ROUNDS_IN_TURN:
        raise RequestError(f"--rounds {asked.fewest}: {MOST_ROUNDS_IN_TURN} are the most")
    if asked.experiment.is_dir():
        raise RequestError(f"{asked.experiment} is a run directory: --interleave measures an experiment")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    out = checked_name(asked.out or default_path(f"compare-{asked.experiment.stem}-{stamp}"))
    check_empty(out)
    for side in (asked.base, asked.new):
        check_there(side)
    made = _made(out)
    code = asked.code or out
    try:
        base, new = asked.base, asked.new
        sides = place(base, asked.experiment, code, new), place(new, asked.experiment, code, base)
        listener.begun(out)
        for placed in sides:
            for note in placed.notes:
                listener.event(note)
        if note := same_code(*sides):
            listener.event(note)
        own = (
            *(
                f"budget.rounds_min={asked.fewest}",
                f"budget.rounds_max={MOST_ROUNDS_IN_TURN}",
                'budget.total="24 h"',
            ),
        )
        seed = random.SystemRandom().randrange(2**31)
        order = f"budget.seed={seed}"  # of both sides, so that launches of the same case are there together
        cores = read_hardware().cores
        turns = Turns(
            sides, out, listener, (*without_order(asked.overrides), order, *own), asked.turns, cores
        )
    except (RequestError, KeyboardInterrupt):
        made.remove()
        raise

    def enough() -> bool:
        return all(
            _decided(change, asked.limit, rare=asked.rare) for change in changes_in(out, asked.alpha).changes
        )

    try:
        turns.measure(asked.total_s, enough, rounds=(asked.fewest, MOST_ROUNDS_IN_TURN), seed=seed)
    except (SideError, KeyboardInterrupt):  # a side that cannot begin has said why
        if not turns.made:
            made.remove()
        raise
    if not turns.made:
        logs = ", ".join(dict.fromkeys(str(log.parent) for log in sorted(out.glob("*/cases/*/proof/*.log"))))
        raise LaunchError(f"no case of a side can be measured{f': see the logs in {logs}' if logs else ''}")
    return changes_in(out, asked.alpha)


def _made(out: Path) -> Made:
    """Make the directory; return what was made of it.

    Raises:
        OutputError: it cannot be made, or holds something.
    """
    try:
        return make_dir(out, {"base", "new", COPIES, FILE}.__contains__)
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {explain_os_error(error)}") from None


def _decided(change: Change, limit: float | None, *, rare: bool = True) -> bool:
    """Return whether more rounds would say nothing that is asked for."""
    if change.verdict == "not comparable":
        return True
    if limit is None:
        return change.verdict != "cannot tell"
    return change.beyond(limit) or (change.within(limit) and (change.shows_rare or not rare))


def changes_in(out: Path, alpha: float = 0.05) -> Changes:
    """Return what may be said of the rounds that a directory holds, with confidence `1 - alpha`.

    Raises:
        RequestError: it holds no comparison.
        IdentityError: it is damaged, or a side has measured nothing.
    """
    from ddpbench.analysis.regression import changes_of, read_side, unlike

    stored = read_comparison(out)
    base = read_side(RunDir(out / "base"), stored.base.words, commit=stored.base.commit)
    new = read_side(RunDir(out / "new"), stored.new.words, commit=stored.new.commit)
    apart = differing([*stored.base.overrides, *stored.new.overrides])
    changes = changes_of(base, new, paired=True, alpha=alpha, differing=apart, unlike=unlike(base, new))
    return replace(changes, foreign=tuple(stored.foreign), turns=stored.turns)
