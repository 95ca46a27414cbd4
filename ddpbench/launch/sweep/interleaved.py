"""Run several launches at once, of which only one computes at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from ddpbench.errors import LaunchError
from ddpbench.launch.memory import free_bytes
from ddpbench.launch.watch import RunningLaunch, whole_because
from ddpbench.machine.disturbance import OUT_OF
from ddpbench.naming import Namer
from ddpbench.records import LaunchOutcome
from ddpbench.runtime.turnstile import Turnstile
from ddpbench.runtime.watchdog import POLL_S
from ddpbench.spec import Case, PlannedCase
from ddpbench.units import series_of

MOST_MEMORY = 0.8
"""Greatest fraction of the free memory that launches may use together."""

MOST_AT_ONCE = 8
"""Most launches that alternate. With more, the time between two launches' blocks would exceed most disturbances."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Launches of a round that run concurrently, in one group or in several groups one after another.

    Several groups have their first launch, the anchor, in common. It alternates with each group in turn, so launches of
    two groups are compared by their ratios to it.
    """

    groups: tuple[tuple[PlannedCase, ...], ...]

    @property
    def entries(self) -> tuple[PlannedCase, ...]:
        """Return all launches, each once, in the order in which they start."""
        return tuple(dict.fromkeys(entry for group in self.groups for entry in group))

    @property
    def anchor(self) -> str:
        """Return the anchor's case id; empty if there is one group."""
        return self.groups[0][0].case.case_id if len(self.groups) > 1 else ""

    def only(self, entries: Collection[PlannedCase]) -> Rotation:
        """Return the rotation with only these launches, which include the first."""
        kept = [tuple(entry for entry in group if entry in entries) for group in self.groups]
        return Rotation((kept[0], *(group for group in kept[1:] if len(group) > 1)))


def rotations(
    todo: Sequence[PlannedCase],
    planned: Sequence[PlannedCase],
    turns: Literal["launches", "blocks", "auto"],
    *,
    most: int = MOST_AT_ONCE,
    alone: Collection[PlannedCase] = (),
) -> Sequence[Rotation]:
    """Divide the launches of a round into rotations, whose groups have at most `most` launches.

    A launch that cannot wait for others, or is in `alone`, has a separate rotation. Others with the same base case form
    a rotation, with that base case as anchor if it is launched; a few are joined with those of the next base case.
    Rotations, and launches after an anchor, keep the round's order.
    """
    if turns == "launches":
        return [Rotation(((entry,),)) for entry in todo]
    wanted, alone = set(todo), set(alone)
    excluded = _alone_bases(planned) if turns == "auto" else ()
    panels: dict[str, list[PlannedCase]] = {}
    for entry in planned:
        base = entry.case.baseline().case_id
        able = (
            entry in wanted and entry not in alone and base not in excluded and not alone_because(entry.case)
        )
        if able and most > 1:
            panels.setdefault(base, []).append(entry)
    packed: list[list[PlannedCase]] = []
    for panel in panels.values():
        if packed and len(packed[-1]) + len(panel) <= most:
            packed[-1] += panel
        else:
            packed.append(panel)
    place = {entry.case.case_id: number for number, entry in enumerate(todo)}
    found = [_rotation(panel, place, most) for panel in packed]
    rotating = {entry for one in found for entry in one.entries}
    found += [Rotation(((entry,),)) for entry in todo if entry not in rotating]
    return sorted(found, key=lambda one: min(place[entry.case.case_id] for entry in one.entries))


def _rotation(panel: Sequence[PlannedCase], place: Mapping[str, int], most: int) -> Rotation:
    def in_round(entries: Iterable[PlannedCase]) -> tuple[PlannedCase, ...]:
        return tuple(sorted(entries, key=lambda entry: place[entry.case.case_id]))

    if len(panel) <= most:
        return Rotation((in_round(panel),))
    bases = {entry.case.baseline().case_id for entry in panel}
    anchor = next((entry for entry in panel if entry.case.case_id in bases), panel[0])
    others = [entry for entry in panel if entry is not anchor]
    many = math.ceil(len(others) / (most - 1))
    groups = [
        in_round(others[at * len(others) // many : (at + 1) * len(others) // many]) for at in range(many)
    ]
    groups.sort(key=lambda group: place[group[0].case.case_id])
    return Rotation(tuple((anchor, *group) for group in groups))


def can_all_alternate(case: Case, planned: Iterable[PlannedCase]) -> bool:
    """Return whether the launches of a case, and of all with which it is compared, can alternate."""
    return case.baseline().case_id not in _alone_bases(planned)


def _alone_bases(planned: Iterable[PlannedCase]) -> set[str]:
    """Return the ids of the base cases with which a case is compared whose launches cannot alternate."""
    return {entry.case.baseline().case_id for entry in planned if alone_because(entry.case)}


def alone_because(case: Case) -> str:
    """Return why a case's launches cannot pause between blocks of steps while others compute; empty if they can.

    A link that was idle lets a burst through, so a block over emulated links would be too fast. In a comparison both
    sides have this advantage.
    """
    return "an idle link would let a burst through" if case.fabric else whole_because(case)


def alone_sentence(planned: Sequence[PlannedCase], names: Namer) -> str:
    """Return a warning that names the cases whose launches cannot alternate, with the reasons; empty if all can."""
    reasons: dict[str, list[str]] = {}
    for entry in planned:
        if reason := alone_because(entry.case):
            reasons.setdefault(reason, []).append(names.full(entry.case))
    if not reasons:
        return ""
    cases = "; ".join(f"{series_of(found, most=_MOST_NAMED)} ({reason})" for reason, found in reasons.items())
    return f'budget.turns = "blocks": launches of these cases cannot alternate and run alone: {cases}'


_MOST_NAMED = 4
"""Most cases that a warning names per reason."""
_SWEEP = "the sweep"
"""Side at the turnstile in whose turn ended launches are concluded."""
_START_POLL_S = 0.02
"""Time between two looks at launches while one of them starts, or has ended and is not concluded yet, s."""
_MEMORY_POLL_S = 1.0
"""Least time between two looks at the free memory once launches have started, s."""

OnEnd = Callable[[LaunchOutcome, float], None]
"""Called when a launch has ended, while no other computes: with its outcome, and the time that it took (s)."""


class InterleavedLaunches(AbstractContextManager["InterleavedLaunches"]):
    """Launches that wait for each other at a turnstile. If the context ends early, their ranks are killed."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._running: dict[str, tuple[RunningLaunch, OnEnd]] = {}
        self._begun = 0
        self._start_s: dict[str, float] = {}
        self.free_before = free_bytes()
        """Free memory before any launch, bytes."""
        self._most_bytes = 0
        """Memory of the launch that needed most of it so far, bytes."""
        self._free_least, self._free_at = self.free_before, time.monotonic()
        self.lost: dict[str, str] = {}
        """Launches without an outcome, which may have failed because of others that ran, each with the reason."""
        self.ran_out = False
        """True if memory ran out while several launches ran."""

    @property
    def running(self) -> Collection[str]:
        """Return the names of the running launches."""
        return self._running.keys()

    @property
    def used_bytes(self) -> int:
        """Return the most memory that all launches used together, bytes."""
        return self.free_before - self._free_least

    def _note_free(self) -> None:
        """Record how much memory is free, at most once a second."""
        if (now := time.monotonic()) - self._free_at >= _MEMORY_POLL_S:
            self._free_least, self._free_at = min(self._free_least, free_bytes()), now

    def has_room(self) -> bool:
        """Return whether a launch that needs as much memory as the largest so far would still fit."""
        used = self.free_before - free_bytes()
        return used + self._most_bytes <= MOST_MEMORY * self.free_before

    def start_all(self, launches: Mapping[str, tuple[Callable[[], RunningLaunch], OnEnd]]) -> int:
        """Start launches, each made by its function, as long as there is memory; return how many were started.

        The first is always started if none is running. The others leave the round. Errors are those of `start`.
        """
        started = 0
        for side, (begun, on_end) in launches.items():
            if self._running and not self.has_room():
                break
            self.start(side, begun(), on_end)
            started += 1
        for side in list(launches)[started:]:
            self._turnstile.leave(side)
        return started

    def start(self, side: str, launch: RunningLaunch, on_end: OnEnd) -> None:
        """Start a launch, and wait until it asks for its first turn or has ended.

        Raises:
            LaunchError: no rank can be started, or ranks cannot write their records or get their turn.
            OSError: the run directory can no longer be written.
        """
        before, began = free_bytes(), time.monotonic()
        self._running[side] = launch, on_end
        self._begun += 1
        self._turnstile.enter(side)
        launch.start()
        least = free_bytes()
        while side in self._running and not self._turnstile.has_asked(side):
            self._start_s[side] = time.monotonic() - began
            self._look(_START_POLL_S)
            least = min(least, free_bytes())
        self._start_s[side] = time.monotonic() - began
        self._most_bytes = max(self._most_bytes, before - least)
        self._free_least = min(self._free_least, least)

    def finish(self, *, but: str = "") -> None:
        """Wait until all launches have ended, except the one named `but`.

        Raises:
            LaunchError: ranks cannot write their records or get their turn.
            OSError: the run directory can no longer be written.
        """
        while self._running.keys() - {but}:
            self._look(POLL_S)

    def _look(self, timeout_s: float) -> None:
        """Look at all launches once, and conclude those that have ended as soon as no other computes.

        Concluding a launch takes a core for a moment.
        """
        if not self._turnstile.serves:
            raise LaunchError(
                "launches no longer get their turn, because the thread that gives it has failed"
            )
        self._note_free()
        if any(launch.over for launch, _ in self._running.values()):
            timeout_s = min(timeout_s, _START_POLL_S)
        for launch, _ in self._running.values():
            if not launch.over:
                launch.look(timeout_s)
                timeout_s = 0.0
        over = [side for side, (launch, _) in self._running.items() if launch.over]
        if not over:
            return
        self._turnstile.expect(_SWEEP)
        if self._turnstile.holder in ("", *over):
            for side in over:
                self._end(side)
            self._turnstile.leave(_SWEEP)

    def _end(self, side: str) -> None:
        """Conclude a launch. If another may have been the cause of its end, it gets no outcome and is repeated alone.

        These are launches whose fork server ended or for which memory ran out while others ran.
        """
        launch, on_end = self._running[side]
        reason = launch.server_gone or launch.out_of_memory
        if reason and self._begun > 1:
            launch.abandon()
            del self._running[side]
            self.lost[side] = reason
            self.ran_out = self.ran_out or OUT_OF in reason
        else:
            outcome = launch.conclude()
            del self._running[side]
            on_end(outcome, self._start_s.get(side, 0.0) + self._turnstile.held_s(side))
        self._turnstile.leave(side)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as ends:
            for launch, _ in self._running.values():
                ends.callback(launch.abandon)
