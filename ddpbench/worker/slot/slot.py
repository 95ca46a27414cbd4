"""A slot is a process that torchrun, srun or a user started. It forks a new rank for every launch of a plan.

Slots meet in a store (`meeting`), check that they belong together (`roster`), and then carry out (`follower`) what the
leading slot (`leader`) orders. A launch uses one slot per rank. Each of these slots has its fork server fork the rank,
watches it, and reports on it in the store (`own_rank`). A slot itself does not train. The store's keys are:

    card/<slot>  verdict  nonce  shared/<slot>  go    exchanged before the first launch
    job/<number>                                  the next order: start a round's servers, launch, or end
    order                                         end the ranks of a launch
    stop                                          a slot had to stop, so all slots stop
    state/<slot>                                  the state of a slot and its rank
    file/<number>/<rank>/...                      records and log of a rank whose node has its own directory
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddpbench.errors import DdpbenchError, LaunchError, OutputError, RequestError
from ddpbench.machine.claim import claimed
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.machine.placement import early_env
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.runtime.running_server import START_TIMEOUT_S
from ddpbench.runtime.server import ServerProcess
from ddpbench.runtime.watchdog import POLL_S
from ddpbench.spec import Case
from ddpbench.strategies.traits import traits_of
from ddpbench.text_safety import clean
from ddpbench.worker.place import SlotPlace
from ddpbench.worker.slot.ending import EXIT_REQUEST, StoppedError
from ddpbench.worker.slot.messages import read_message
from ddpbench.worker.slot.own_card import own_card
from ddpbench.worker.slot.roster import Card, Seat, check, check_places, leading, seat
from ddpbench.worker.slot.sealing import OtherKeyError, StrangerError, fresh

if TYPE_CHECKING:
    from ddpbench.worker.slot.meeting import Meeting

BEAT_S = 1.0
"""Longest time between two reports of a slot whose rank runs, in seconds."""
QUICK_POLL_S = 0.02
"""Time between two checks by the leader while nothing is measured, in seconds."""
LEADER_LOST_S = START_TIMEOUT_S + 60.0
_SHARED_TRIES = 5


class Slot:
    """A slot, used as a context manager. On exit it ends its fork servers and ranks."""

    def __init__(
        self, run: RunDir, place: SlotPlace, meeting: Meeting, launcher_lives: Callable[[], None]
    ) -> None:
        self.run, self.place, self.meeting = run, place, meeting
        self.lives = launcher_lives
        self.shared_machine = own_environment_allows_sharing()
        self.cards: list[Card] = []
        self.seats: list[Seat] = []
        self.unshared: set[int] = set()
        """Ranks of slots that don't see the leader's directory."""
        self._stack = ExitStack()
        self._servers: dict[str, ServerProcess] = {}
        self._ticks = 0
        self.told_at = 0.0
        self._state: dict[str, Any] = {}

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_servers()
        self._stack.close()

    def attend(self, *, lead: Callable[[Slot], int], follow: Callable[[Slot, int], int]) -> int:
        """Meet the other slots, then lead or follow until the plan is carried out. Return the exit code.

        Calls `lead` if this slot leads, otherwise `follow` with the leading slot's rank.

        Raises:
            RequestError: the slots do not belong together, or are too few; nothing was measured.
            LaunchError: the slots cannot continue.
        """
        card = replace(own_card(self.run, self.place, self.server), fresh=fresh())
        self.meeting.put(f"card/{self.place.rank}", card.to_json())
        try:
            if self.place.rank == 0:
                self._gather()
            verdict = self.await_key("verdict", self._start_s + 2 * self.meeting.join_s)
        except OtherKeyError as error:
            raise (
                OutputError(card.problem) if card.problem else error
            ) from None  # without a directory, this slot has no key
        if verdict["refusal"]:
            raise RequestError(verdict["refusal"])
        self.cards = [Card.from_json(one) for one in verdict["cards"]]
        leader: int = verdict["leader"]
        ranks = [one.rank for one in self.cards]
        if (
            ranks != list(range(self.place.slots))
            or self.cards[self.place.rank].fresh != card.fresh
            or leader not in ranks
        ):
            raise StrangerError(
                "the verdict in the store is about other slots than this job's; see docs/security.md"
            )
        self.meeting.begin_job(verdict["cards"])
        self.tell(job=-1)
        self.seats = seat(self.cards, leader)
        if leader == self.place.rank:
            return lead(self)
        return follow(self, leader)

    @property
    def _start_s(self) -> float:
        """Maximum time from a slot's connection to the store until the slot has started (seconds)."""
        return min(START_TIMEOUT_S, self.meeting.join_s)

    def _gather(self) -> None:
        keys = {f"card/{rank}": rank for rank in range(self.place.slots)}
        deadline = time.monotonic() + self.meeting.join_s + self._start_s
        while missing := self.meeting.missing(list(keys)):
            self.lives()
            self.check_stop()
            if time.monotonic() > deadline:
                late = ", ".join(str(keys[key]) for key in missing)
                slots = "slot" if len(missing) == 1 else "slots"
                self.meeting.put("verdict", {"refusal": f"{slots} {late} (of {len(keys)}) did not join"})
                return
            time.sleep(POLL_S)
        cards = [Card.from_json(self._card_at(key)) for key in keys]
        if [card.rank for card in cards] != list(range(self.place.slots)):
            raise StrangerError(
                "the cards in the store are from other slots than this job's; see docs/security.md"
            )
        refusal, leader = "", 0
        try:
            check(cards)
            leader = leading(cards)
            check_places(
                [(entry, processes_of(entry.case)) for entry in read_plan(self.run).runnable],
                seat(cards, leader),
            )
        except RequestError as error:
            refusal = str(error)
        verdict = {"refusal": refusal, "leader": leader, "cards": [card.to_json() for card in cards]}
        self.meeting.put("verdict", verdict)

    def _card_at(self, key: str) -> dict[str, Any]:
        try:
            return self.meeting.get(key)[0]
        except OtherKeyError as error:
            with suppress(StrangerError):
                if problem := read_message(key, error.value)["problem"]:
                    raise OtherKeyError(f"{error}. The message says: {problem}") from None
            raise

    def await_key(self, key: str, timeout_s: float) -> dict[str, Any]:
        """Wait for a key of the store and return its value.

        Raises:
            LaunchError: the key was not set within `timeout_s`, the launcher has ended, or another slot had to stop.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.lives()
            value = self.meeting.take(key, BEAT_S)
            if value is not None:
                return value
            self.check_stop()
            self.beat()
        raise LaunchError(f"slot {self.place.rank} waited {timeout_s:.0f} s for {key!r} of the leading slot")

    def check_stop(self) -> None:
        """Raise StoppedError if another slot had to stop."""
        if self.meeting.has("stop"):
            (stop,) = self.meeting.get("stop")
            resumable = stop["code"] != EXIT_REQUEST
            start = "ended, and can be resumed with the same commands: " if resumable else ""
            raise StoppedError(f"{start}{stop['why']}", stop["code"])

    def share(self, nonce: str) -> None:
        """Report whether this slot sees the leader's directory, which contains the file `nonce`.

        The first slot of each host also claims the host's cores for this run.
        """
        sees = False
        for attempt in range(_SHARED_TRIES):
            sees = (self.run.path / nonce).exists()
            if sees:
                break
            time.sleep(0.1 * attempt)  # a network file system may take a moment
        problem = ""
        first_on_host = next(one.rank for one in self.seats if one.host == self.seat.host)
        if first_on_host == self.place.rank and not self.shared_machine:
            cores = {core for one in self.seats if one.host == self.seat.host for core in one.cores}
            try:
                self._stack.enter_context(claimed(sorted(cores)))
            except DdpbenchError as error:
                problem = f"{self.seat.host}: {error}"
        self.meeting.put(f"shared/{self.place.rank}", {"sees": sees, "problem": problem})

    def go(self) -> None:
        """Wait for the leader's permission to run anything.

        Raises:
            RequestError: the leader refuses.
        """
        go = self.await_key("go", LEADER_LOST_S)
        if go["refusal"]:
            raise RequestError(go["refusal"])
        self.unshared = set(go["unshared"])

    @property
    def seat(self) -> Seat:
        """This slot's seat."""
        return next(one for one in self.seats if one.rank == self.place.rank)

    def begin_round(self, number: int, envs: Sequence[Mapping[str, str]], *, fresh: bool) -> None:
        """Ensure that fork servers run for the round's environments, and report the time of their start.

        `fresh` replaces earlier servers, because all ranks forked from one share its address layout.
        """
        if fresh:
            self.close_servers(self.beat)
        started_s = sum(self.server(env).start_s for env in envs)
        self.tell(job=number, ready_s=round(started_s, 3))

    def server(self, env: Mapping[str, str]) -> ServerProcess:
        """Return the fork server for an environment. Start it on the first call, or again if it has ended."""
        key = json.dumps(dict(env), sort_keys=True)
        if key not in self._servers or not self._servers[key].alive:
            log = self.run.path / f"server-{self.place.rank:05d}.log"
            self._servers[key] = ServerProcess(env, log, waiting=self.beat)
        return self._servers[key]

    def close_servers(self, closed: Callable[[], None] = lambda: None) -> None:
        """End the fork servers and with them their ranks. Call `closed` after each server."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
            closed()

    def tell(self, **state: Any) -> None:
        """Report this slot's state in the store."""
        self._state = state
        self._ticks += 1
        self.told_at = time.monotonic()
        self.meeting.put(f"state/{self.place.rank}", {"tick": self._ticks, **state})

    def beat(self) -> None:
        """Repeat the last report if it is older than `BEAT_S`, as a sign of life."""
        if self._state and time.monotonic() - self.told_at > BEAT_S:
            self.tell(**self._state)

    def idle(self, timeout_s: float) -> None:
        """Sleep for `timeout_s` while this slot has no rank.

        Raises:
            StoppedError: another slot had to stop.
            LaunchError: the launcher has ended.
        """
        self.lives()
        self.check_stop()
        time.sleep(timeout_s)
        self.beat()


def processes_of(case: Case) -> int:
    """Return a case's number of processes, which is 1 if its strategy holds all replicas in one process."""
    return 1 if traits_of(case).one_process else case.world_size


def environments(cases: Iterable[Case]) -> list[dict[str, str]]:
    """Return the distinct environments for which these cases need fork servers."""
    envs: list[dict[str, str]] = []
    for case in cases:
        env = dict(early_env(case))
        if env not in envs:
            envs.append(env)
    return envs


def say(text: str) -> None:
    """Print a line to stderr for the user. Control characters, which other nodes may send, are made visible."""
    print(clean(text), file=sys.stderr, flush=True)  # noqa: T201
