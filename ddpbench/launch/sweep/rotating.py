"""Run the launches of a rotation: each starts while no other computes, and then their blocks of steps alternate."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ddpbench.errors import ServerGoneError
from ddpbench.launch.listener import Listener
from ddpbench.launch.memory import processes_of
from ddpbench.launch.plan import LaunchPlan
from ddpbench.launch.sweep.interleaved import MOST_AT_ONCE, MOST_MEMORY, InterleavedLaunches, Rotation
from ddpbench.launch.sweep.progress import Progress
from ddpbench.launch.sweep.servers import Servers
from ddpbench.launch.watch import Interleaved, LaunchRunner, RunningLaunch
from ddpbench.records import LaunchOutcome
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.request import INTERLEAVED_BLOCKS
from ddpbench.runtime.server import ServerLane, ServerProcess
from ddpbench.runtime.turnstile import Turnstile
from ddpbench.spec import Budget, PlannedCase
from ddpbench.units import counted, format_bytes

_ANCHOR_SHARE = 4 / 3
"""Time of the anchor's turns in each group but the last, divided by the time to measure in a group.

A turn has one untimed step and, where steps are long, three timed steps.
"""


class Rotating:
    """Runs rotations of launches, and keeps what a sweep's later rotations need to know."""

    def __init__(self, runner: LaunchRunner, progress: Progress, listener: Listener, budget: Budget) -> None:
        self._runner, self._progress, self._listener, self._budget = runner, progress, listener, budget
        self._no_turnstile = False
        self._alone_reported: set[PlannedCase] = set()
        self.most_at_once = MOST_AT_ONCE
        """Most launches that alternate. Lower if there was no memory for more in an earlier round."""
        self.memory_estimated = False
        """True if an estimate of the memory of launches that alternate was printed."""
        self._memory_measured = False
        self.alone: set[PlannedCase] = set()
        """Cases of the present round to repeat alone: their fork server ended or memory ran out while others ran."""

    def turnstile(self, number: int) -> Turnstile | None:
        """Return a new turnstile for a round; None if it cannot be made, which is reported once."""
        if self._no_turnstile:
            return None
        try:
            return Turnstile(random.Random(f"{self._budget.seed} {number}"), stops=True)
        except OSError as error:
            self._no_turnstile = True
            self._progress.warn(f"launches of a round run one after another: no socket can be made ({error})")
            return None

    def run(
        self,
        rotation: Rotation,
        turnstile: Turnstile,
        plans: Mapping[PlannedCase, LaunchPlan],
        servers: Servers,
        *,
        share_s: Callable[[PlannedCase, ServerProcess], float],
        ended: Callable[[PlannedCase, LaunchOutcome, float], None],
    ) -> Sequence[PlannedCase]:
        """Run groups of launches, one group after another, and return the cases that are still to be launched.

        Launches start while no other computes, then their blocks alternate. The anchor starts with the first group.
        `share_s` returns a launch's part of a server's start-up time (s). `ended` gets a launch's outcome and time (s).
        """
        cores = sorted({core for plan in plans.values() for core in plan.cores})
        prepared_s = {entry: _prepared_s(servers, plan) for entry, plan in plans.items()}
        together, lanes = InterleavedLaunches(turnstile), _Lanes()
        left: list[PlannedCase] = []

        def begun(entry: PlannedCase) -> RunningLaunch:
            plan, case_id = plans[entry], entry.case.case_id
            self._progress.tell_launch(entry, "measure", plan.round)
            server, has_turn = servers.of(plan.server_env), partial(_has_turn, turnstile, case_id)
            return self._runner.begin(
                lanes.free(server, case_id, together.running),
                plan,
                measured_s=self._budget.measured_s,
                target_loss=self._budget.target_loss,
                server_share_s=prepared_s[entry] + share_s(entry, server),
                on_pulse=partial(self._pulsed, entry, has_turn),
                interleaved=Interleaved(
                    address=turnstile.address(case_id),
                    cores=cores,
                    has_turn=has_turn,
                    is_stopped=partial(turnstile.suspension.is_stopped, case_id),
                    alternated=partial(turnstile.alternated, case_id),
                    groups=len(rotation.groups) if case_id == rotation.anchor else 1,
                ),
            )

        with together:
            for part in _parts(rotation):
                part.begin(turnstile, rotation.anchor, _ANCHOR_SHARE * self._budget.measured_s)
                launches = {
                    entry.case.case_id: (partial(begun, entry), partial(self._ended, entry, ended))
                    for entry in part.starting
                }
                started = together.start_all(launches)
                if started < len(launches):
                    left += part.starting[started:]
                    self.most_at_once = max(1, started + (part.number > 0))
                together.finish(but="" if part.is_last else rotation.anchor)
        self._note_memory(rotation, together)
        return [*left, *self._lost(plans, together)]

    def _note_memory(self, rotation: Rotation, together: InterleavedLaunches) -> None:
        """Let fewer launches alternate if those of the first rotation used too much memory or it ran out.

        Estimates leave out activations. All launches count as if each used as much as any other. What they used is
        printed if it leads to fewer launches, or if no estimate was printed.
        """
        most = max(map(len, rotation.groups))
        if together.ran_out:
            self.most_at_once = min(self.most_at_once, max(1, most // 2))
        if self._memory_measured:
            return
        self._memory_measured = True
        used, free = together.used_bytes, together.free_before
        ranks = max(sum(processes_of(entry.case) for entry in group) for group in rotation.groups)
        text = f"{counted(ranks, 'rank')} used up to {format_bytes(used)} of {format_bytes(free)} free"
        if used > MOST_MEMORY * free:
            self.most_at_once = min(self.most_at_once, max(1, int(most * MOST_MEMORY * free / used)))
            text += (
                f"; at most {self.most_at_once} launches alternate from now on, to stay under "
                f"{100 * MOST_MEMORY:.0f} % of the free memory"
            )
        elif self.memory_estimated:
            return
        self._listener.note(text)

    def _ended(
        self,
        entry: PlannedCase,
        ended: Callable[[PlannedCase, LaunchOutcome, float], None],
        outcome: LaunchOutcome,
        took_s: float,
    ) -> None:
        """Call `ended`, and report once for each case that its launch did not alternate as it should."""
        ended(entry, outcome, took_s)
        if outcome.status == "ok" and not outcome.noise.in_turn and entry not in self._alone_reported:
            self._alone_reported.add(entry)
            name = self._progress.plan.names.full(entry.case)
            self._progress.warn(
                f"launches of {name} run alone: its own loader has workers, which keep fetching"
            )

    def _lost(
        self, plans: Mapping[PlannedCase, LaunchPlan], together: InterleavedLaunches
    ) -> Sequence[PlannedCase]:
        lost = [entry for entry in plans if entry.case.case_id in together.lost]
        if lost:
            self.alone.update(lost)
            launches, number = counted(len(lost), "launch", "launches"), plans[lost[0]].round + 1
            reason = together.lost[lost[0].case.case_id]
            self._progress.warn(f"{launches} of round {number} repeated, one at a time: {reason}")
        return lost

    def _pulsed(self, entry: PlannedCase, has_turn: Callable[[], bool], pulse: Pulse) -> None:
        if has_turn():
            self._listener.pulse(entry, pulse, None)


@dataclass(frozen=True, slots=True)
class _Part:
    """A group of a rotation, with the launches that start with it. The anchor starts with the first group."""

    number: int
    starting: Sequence[PlannedCase]
    is_last: bool

    def begin(self, turnstile: Turnstile, anchor: str, anchor_s: float) -> None:
        ids = [entry.case.case_id for entry in self.starting]
        turns = None if self.is_last else INTERLEAVED_BLOCKS
        if self.number:
            turnstile.go_on_with(ids, anchor_turns=turns)
        else:
            turnstile.begin(ids, anchor=anchor, anchor_turns=turns, anchor_s=anchor_s)


def _parts(rotation: Rotation) -> Iterable[_Part]:
    for number, group in enumerate(rotation.groups):
        starting = group[1:] if number else group
        yield _Part(number, starting, is_last=number == len(rotation.groups) - 1)


class _Lanes:
    """Gives launches that run at once separate lanes of their fork servers."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[ServerProcess, int]] = {}

    def free(self, server: ServerProcess, side: str, running: Collection[str]) -> ServerLane:
        used = {lane for other, (its, lane) in self._of.items() if its is server and other in running}
        number = next(lane for lane in itertools.count() if lane not in used)
        self._of[side] = server, number
        return server.lane(number)


def _prepared_s(servers: Servers, plan: LaunchPlan) -> float:
    """Have a launch's fork server import what its ranks need; return the time it took (s).

    A server that can then no longer fork is replaced, and its ranks end. Therefore all launches are prepared before any
    is started.
    """
    server, began = servers.of(plan.server_env), time.monotonic()
    with suppress(ServerGoneError):  # the launch starts another one
        server.prepare(plan.case)
    return time.monotonic() - began


def _has_turn(turnstile: Turnstile, side: str) -> bool:
    """Return whether a launch computes: it has the turn, or is starting while nobody has it."""
    return turnstile.holder in (side, "") and not turnstile.suspension.is_stopped(side)
