"""Run several launches at once, of which only one computes at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

import psutil

from ddpbench.launch.watch import RunningLaunch, whole_because
from ddpbench.records import LaunchOutcome
from ddpbench.runtime.turnstile import Turnstile
from ddpbench.runtime.watchdog import POLL_S
from ddpbench.spec import PlannedCase

MOST_MEMORY = 0.8
"""Greatest fraction of the free memory that launches may use together."""

MOST_AT_ONCE = 8
"""Most launches that alternate. With more, blocks of two launches would lie further apart than disturbances last."""


def interleaved_groups(
    todo: Sequence[PlannedCase], planned: Sequence[PlannedCase]
) -> Sequence[Sequence[PlannedCase]]:
    """Divide the launches of a round into groups of at most `MOST_AT_ONCE` launches that can alternate.

    A launch that cannot wait for others is a group of its own. Cases that are neighbours in the plan, which share most
    settings, come into one group as far as possible. The launches of a group keep the round's order, and the groups
    have the order of their first launches.
    """
    place = {entry.case.case_id: number for number, entry in enumerate(planned)}
    able = sorted(
        (entry for entry in todo if not whole_because(entry.case)),
        key=lambda entry: place[entry.case.case_id],
    )
    many = math.ceil(len(able) / MOST_AT_ONCE)
    group_of = {entry.case.case_id: at * many // len(able) for at, entry in enumerate(able)}
    groups: dict[object, list[PlannedCase]] = {}
    for entry in todo:
        groups.setdefault(group_of.get(entry.case.case_id, entry.case.case_id), []).append(entry)
    return list(groups.values())


OnEnd = Callable[[LaunchOutcome], None]
"""Called with the outcome of a launch that has ended, while no other launch computes."""


class InterleavedLaunches(AbstractContextManager["InterleavedLaunches"]):
    """Launches that wait for each other at a turnstile. If the context ends early, their ranks are killed."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._running: dict[str, tuple[RunningLaunch, OnEnd]] = {}
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
            LaunchError: no rank can be started, or their records cannot be written.
            OSError: the run directory can no longer be written.
        """
        before = _free_bytes()
        self._running[side] = launch, on_end
        self._turnstile.enter(side)
        launch.start()
        while side in self._running and not self._turnstile.has_asked(side):
            self._look()
        self._most_bytes = max(self._most_bytes, before - _free_bytes())

    def finish(self) -> None:
        """Wait until all launches have ended.

        Raises:
            LaunchError: the ranks' records cannot be written.
            OSError: the run directory can no longer be written.
        """
        while self._running:
            self._look()

    def _look(self) -> None:
        """Look at all launches once, and conclude those that have ended."""
        timeout_s = POLL_S
        for side, (launch, on_end) in list(self._running.items()):
            launch.look(timeout_s)
            timeout_s = 0.0
            if launch.over:
                on_end(launch.conclude())
                del self._running[side]
                self._turnstile.leave(side)  # only now, because concluding a launch takes a core for a moment

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for launch, _ in self._running.values():
            launch.abandon()


def _free_bytes() -> int:
    available: int = psutil.virtual_memory().available
    return available
