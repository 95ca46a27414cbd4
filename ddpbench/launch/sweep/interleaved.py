"""Run several launches at once, of which only one computes at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

import psutil

from ddpbench.cpu_quota import memory_left
from ddpbench.errors import LaunchError
from ddpbench.launch.watch import RunningLaunch, whole_because
from ddpbench.records import LaunchOutcome
from ddpbench.runtime.turnstile import Turnstile
from ddpbench.runtime.watchdog import POLL_S
from ddpbench.spec import Case, PlannedCase

MOST_MEMORY = 0.8
"""Greatest fraction of the free memory that launches may use together."""

MOST_AT_ONCE = 8
"""Most launches that alternate. With more, the time between two launches' blocks would exceed most disturbances."""


def interleaved_groups(
    todo: Sequence[PlannedCase], planned: Sequence[PlannedCase]
) -> Sequence[Sequence[PlannedCase]]:
    """Divide the launches of a round into groups of at most `MOST_AT_ONCE` launches that can alternate.

    A launch that cannot wait for others forms a separate group. As far as possible, cases with the same base case are
    in one group, and so are neighbours in the plan, which share most settings. The launches of a group keep the round's
    order, and the groups have the order of their first launches.
    """
    place = {entry.case.case_id: number for number, entry in enumerate(planned)}

    def neighbours(entry: PlannedCase) -> tuple[int, int]:
        own = place[entry.case.case_id]
        return place.get(entry.case.baseline().case_id, own), own

    able = sorted((entry for entry in todo if _can_wait(entry.case)), key=neighbours)
    many = math.ceil(len(able) / MOST_AT_ONCE)
    group_of = {entry.case.case_id: at * many // len(able) for at, entry in enumerate(able)}
    groups: dict[object, list[PlannedCase]] = {}
    for entry in todo:
        groups.setdefault(group_of.get(entry.case.case_id, entry.case.case_id), []).append(entry)
    return list(groups.values())


def _can_wait(case: Case) -> bool:
    """Return whether a case's launches can pause between blocks of steps while other launches compute.

    Launches over emulated links cannot. A link that was idle lets a burst through, so the next block would be faster
    than the link. In a comparison this does no harm, because both sides have the same advantage.
    """
    return not whole_because(case) and not case.fabric


_START_POLL_S = 0.02
"""Time between two looks at launches while one of them starts and no other computes, s."""

OnEnd = Callable[[LaunchOutcome, float], None]
"""Called when a launch has ended, while no other computes: with its outcome, and the time that it took (s)."""


class InterleavedLaunches(AbstractContextManager["InterleavedLaunches"]):
    """Launches that wait for each other at a turnstile. If the context ends early, their ranks are killed."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._running: dict[str, tuple[RunningLaunch, OnEnd]] = {}
        self._start_s: dict[str, float] = {}
        self._free_before = _free_bytes()
        self._most_bytes = 0
        """Memory of the launch that needed most of it so far, bytes."""

    def has_room(self) -> bool:
        """Return whether a launch that needs as much memory as the largest so far would still fit."""
        used = self._free_before - _free_bytes()
        return used + self._most_bytes <= MOST_MEMORY * self._free_before

    def start(self, side: str, launch: RunningLaunch, on_end: OnEnd) -> None:
        """Start a launch, and wait until it asks for its first turn or has ended.

        Raises:
            LaunchError: no rank can be started, or ranks cannot write their records or get their turn.
            OSError: the run directory can no longer be written.
        """
        before, began = _free_bytes(), time.monotonic()
        self._running[side] = launch, on_end
        self._turnstile.enter(side)
        launch.start()
        least = _free_bytes()
        while side in self._running and not self._turnstile.has_asked(side):
            self._start_s[side] = time.monotonic() - began
            self._look(_START_POLL_S)
            least = min(least, _free_bytes())
        self._start_s[side] = time.monotonic() - began
        self._most_bytes = max(self._most_bytes, before - least)

    def finish(self) -> None:
        """Wait until all launches have ended.

        Raises:
            LaunchError: ranks cannot write their records or get their turn.
            OSError: the run directory can no longer be written.
        """
        while self._running:
            self._look(POLL_S)

    def _look(self, timeout_s: float) -> None:
        """Look at all launches once, and conclude those that have ended."""
        if not self._turnstile.serves:
            raise LaunchError(
                "launches no longer get their turn, because the thread that gives it has failed"
            )
        for side, (launch, on_end) in list(self._running.items()):
            if not launch.over:
                launch.look(timeout_s)
                timeout_s = 0.0
            if launch.over:
                outcome = launch.conclude()
                del self._running[side]
                on_end(outcome, self._start_s.get(side, 0.0) + self._turnstile.held_s(side))
                self._turnstile.leave(side)  # only now, because concluding a launch takes a core for a moment

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as ends:
            for launch, _ in self._running.values():
                ends.callback(launch.abandon)


def _free_bytes() -> int:
    """Return the memory that this process and its descendants may still use, bytes."""
    available: int = psutil.virtual_memory().available
    left = memory_left()
    return available if left is None else min(available, left)
