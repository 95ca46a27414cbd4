"""A turnstile for launches that measure on the same cores: one computes while the others wait.

The launches, here called sides, are the two of a comparison or those of a sweep's round.

The turnstile is a Unix socket, which every process of this host can reach from any network namespace. A side takes the
turn before a launch and gives it back at its end. In between, rank 0 offers the turn before each block of steps, and a
waiting side computes one block. Before the first timed block, sides with the same number in a round (`place`) meet. So
blocks of all sides follow each other closely, and a disturbance of the machine affects all of them.

The launches of a sweep's round may form several groups, of which one alternates at a time (`begin`, then `go_on_with`).
The groups have one launch in common, the anchor. Between two groups, the anchor waits until the next group's other
launches meet, so each of its timed blocks has neighbours from one group.

A request is a line with a verb and the side: `offer`, `meet`, `give`, or `take` with the launch's place. The turnstile
answers with one byte when the side has the turn: the index of the present group, modulo 256. A rank may also `join` its
side, which is not answered. Then the rank is stopped while its side waits (`suspension.py`).
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import resource
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ddpbench.removal import TemporaryFolder, remove_tree
from ddpbench.runtime.suspension import Suspension

TURNSTILE = "DDPBENCH_TURNSTILE"
"""Environment variable of a side's sweep process with the turnstile's path and the side's name: `PATH SIDE`."""
TURN = "DDPBENCH_TURN"
"""Like `TURNSTILE`, for the ranks of a launch whose blocks of steps alternate with other sides' blocks."""
JOINS = "DDPBENCH_JOINS"
"""Environment variable of ranks that join their side. It is not set in a comparison, whose turnstile may be older."""
IN_TURN = "go in turn"
"""Command sent to a side's process before a round in which the sides alternate."""
WHOLE = "launches are interleaved, not blocks of their steps"
"""Beginning of a message which says why complete launches alternate, and not blocks of steps."""
MOST_GROUPS = 256
"""Number of groups of a round that the turnstile's answers distinguish."""
_GONE = "the process that says whose turn it is has ended"
_FOLDER = "ddpbench-turns-"
_SOCKET = "turnstile"
_STALE_S = 60.0
"""Age from which a folder is removed if nobody listens at its socket (s). A new socket does not listen yet."""
_LOOK_S = 1.0


class TurnstileGoneError(ConnectionError):
    """The process that grants turns has ended."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A side's request for the turn. If `meets`, other launches must first reach the meeting point."""

    side: str
    connection: socket.socket
    meets: bool


@dataclass(slots=True)
class _Groups:
    """The groups of launches of a round, of which the last alternates now."""

    anchor: str = ""
    """The side that all groups have in common; empty if there is one group."""
    anchor_turns: int | None = None
    """Most turns of the anchor while another group follows; None if none follows."""
    anchor_ns: float = math.inf
    """Time of its turns in a group after which the anchor gets no more while another group follows (ns)."""
    met: list[set[str]] = field(default_factory=lambda: [set()])
    """For each group, the sides that have reached the meeting point, including those that have ended since."""

    @property
    def number(self) -> int:
        """Return the index of the present group."""
        return len(self.met) - 1

    def begin_next(self, met: set[str], anchor_turns: int | None) -> None:
        """Begin the next group, in which the sides `met` need not meet the others."""
        self.met.append(met)
        self.anchor_turns = anchor_turns

    def alternated(self, side: str) -> tuple[tuple[str, ...], ...]:
        """Return the groups in which a side has met others, each as the other sides, in order."""
        groups = [tuple(sorted(met - {side})) if side in met else () for met in self.met]
        return tuple(groups) if side == self.anchor and any(groups) else tuple(filter(None, groups))

    def may_go_on(self, side: str, sides: _Sides, shares: _Shares) -> bool:
        """Return whether a side that offered the turn may get it.

        If another group follows, the anchor gets no turn in its timed blocks unless others are in theirs, too.
        """
        if side != self.anchor or side not in sides.met:
            return True
        others = sides.launched - {side}
        if self.anchor_turns is None:
            return others <= sides.met
        turns, held_ns = shares.counted(side)
        has_share = turns < self.anchor_turns and held_ns < self.anchor_ns
        return bool(others) and others <= sides.met and has_share


@dataclass(slots=True)
class _Sides:
    """The sides of a round."""

    places: dict[str, int] = field(default_factory=dict)
    """Place in the round of each side's last launch; -1 before the first launch."""
    launched: set[str] = field(default_factory=set)
    """Sides with a running launch."""
    met: set[str] = field(default_factory=set)
    """Sides whose running launch has reached the meeting point."""

    def begun(self, side: str, place: int) -> None:
        """Record that a side's launch at this place begins."""
        self.places[side] = place
        self.launched.add(side)

    def ended(self, side: str) -> None:
        """Record that a side's launch has ended."""
        self.launched.discard(side)
        self.met.discard(side)

    def all_met(self, side: str) -> bool:
        """Return whether the other sides' launches at this side's place have reached the meeting point or ended."""
        here = self.places.get(side, -1)
        return all(
            there > here or (there == here and (other in self.met or other not in self.launched))
            for other, there in self.places.items()
            if other != side
        )


@dataclass(slots=True)
class _Shares:
    """Each side's number of turns and time with the turn in a round."""

    turns: dict[str, int] = field(default_factory=dict)
    """Number of turns since a side met the others or, for the anchor, since the present group began."""
    _held_ns: dict[str, int] = field(default_factory=dict)
    _before_ns: dict[str, int] = field(default_factory=dict)
    """The values of `_held_ns` from which `counted` counts."""
    _from_ns: int = 0

    def begin_turn(self, side: str) -> None:
        """Record that a side gets the turn."""
        self.turns[side], self._from_ns = self.turns.get(side, 0) + 1, time.perf_counter_ns()

    def end_turn(self, side: str) -> None:
        """Record that the side with the turn loses it."""
        self._held_ns[side] = self.held_ns(side, has_turn=True)

    def held_ns(self, side: str, *, has_turn: bool = False) -> int:
        """Return for how long a side has had the turn in this round (ns), with its present turn if it `has_turn`."""
        return self._held_ns.get(side, 0) + (time.perf_counter_ns() - self._from_ns if has_turn else 0)

    def count_again(self, *sides: str, holder: str) -> None:
        """Count these sides' turns, and time for `counted`, from zero again; `holder` is the side with the turn."""
        self.turns |= dict.fromkeys(sides, 0)
        self._before_ns |= {side: self.held_ns(side, has_turn=side == holder) for side in sides}

    def counted(self, side: str) -> tuple[int, int]:
        """Return a side's number of turns and the time of those that have ended (ns), since `count_again`."""
        return self.turns.get(side, 0), self.held_ns(side) - self._before_ns.get(side, 0)


class Turnstile:
    """The server of a turnstile: a socket, and a thread that gives the turn to one side at a time."""

    def __init__(self, dice: random.Random | None = None, *, stops: bool = False) -> None:
        """Open the turnstile's socket, and start the thread.

        With `dice`, the next side is drawn at random from the waiting sides with the fewest turns since they met.
        Without `dice`, the side that has waited longest is next. If `stops`, processes that joined a side are stopped
        while the side waits, so they give no sign of life meanwhile.

        Raises:
            OSError: the socket cannot be made.
        """
        _remove_left_folders()
        self._folder = TemporaryFolder(_FOLDER)
        self.path = self._folder.path / _SOCKET
        self._lock = threading.Lock()
        self._dice = dice
        self._shares = _Shares()
        self.holder = ""
        """The side that has the turn; empty if none has it."""
        self._waiting: list[_Waiting] = []
        self._order: tuple[str, ...] = ()
        self._expected: set[str] = set()
        self._sides = _Sides()
        self._groups = _Groups()
        self.suspension = Suspension(stops=stops)
        self._stopping, self._stop = socket.socketpair()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listening.bind(str(self.path))
        except OSError:  # for example, the temporary folder's name is too long
            self._listening.close()
            self._stopping.close()
            self._stop.close()
            self._folder.remove()
            raise
        self._listening.listen(4096)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def address(self, side: str) -> str:
        """Return the value of the variable `TURNSTILE` or `TURN` for a side's processes."""
        return f"{self.path} {side}"

    def close(self) -> None:
        """Close the turnstile; waiting sides get a `TurnstileGoneError`."""
        self._stop.close()
        self._thread.join()
        self._folder.remove()

    def begin(
        self,
        order: Sequence[str],
        *,
        anchor: str = "",
        anchor_turns: int | None = None,
        anchor_s: float = math.inf,
    ) -> None:
        """Begin a round in which the sides take the turn in this order.

        The first turn is given only when each side has asked for a turn or has left the round (`leave`). If another
        group of sides follows, `anchor` is the side that all groups have in common. It has at most `anchor_turns` turns
        in this group after the meeting, no further turn once these took `anchor_s` seconds, and none when the other
        sides have ended.
        """
        with self._lock:
            self._order, self._expected = tuple(order), set(order)
            self.holder, self._waiting = "", []
            self._sides = _Sides(dict.fromkeys(order, -1))
            self._shares = _Shares()
            self._groups = _Groups(anchor, anchor_turns, 1e9 * anchor_s)

    def go_on_with(self, order: Sequence[str], *, anchor_turns: int | None = None) -> None:
        """Continue the round with the next group: the anchor, which waits if it still runs, and these other sides.

        `anchor_turns` is as in `begin`, and `anchor_s` that of `begin`.
        """
        with self._lock:
            anchor = self._groups.anchor
            self._order, self._expected = (anchor, *order), set(order)
            self._sides.places |= dict.fromkeys(order, -1)
            self._shares.count_again(anchor, *order, holder=self.holder)
            self._groups.begin_next({anchor} & self._sides.met, anchor_turns)
            self._given("")

    def alternated(self, side: str) -> tuple[tuple[str, ...], ...]:
        """Return the groups in which a side has met others in this round, each as the other sides, in order."""
        with self._lock:
            return self._groups.alternated(side)

    @property
    def serves(self) -> bool:
        """Return whether turns are given; False if the turnstile is closed or has failed."""
        return self._thread.is_alive()

    def held_s(self, side: str) -> float:
        """Return for how long a side has had the turn in this round (s)."""
        with self._lock:
            return self._shares.held_ns(side, has_turn=self.holder == side) / 1e9

    def enter(self, side: str) -> None:
        """Record that a side's launch begins; it has place 0 in its round and asks for its first turn by `offer`."""
        with self._lock:
            self._sides.begun(side, 0)

    def expect(self, side: str) -> None:
        """Give no further turn until this side asks for one or leaves the round. Who has the turn keeps it."""
        with self._lock:
            self._expected.add(side)

    def has_asked(self, side: str) -> bool:
        """Return whether a side has asked for a turn in this round, or has left the round."""
        with self._lock:
            return side not in self._expected

    def leave(self, side: str) -> None:
        """Record that a side needs no more turns in this round: take the turn from the side, and don't wait for it."""
        with self._lock:
            self._expected.discard(side)
            self._sides.places.pop(side, None)
            self._ended(side)

    def _ended(self, side: str) -> None:
        self._waiting = [entry for entry in self._waiting if entry.side != side]
        self.suspension.go_on(side)
        self._sides.ended(side)
        self._given(side)

    def _given(self, side: str) -> None:
        """Take the turn from a side, if it has the turn, and give it to a waiting side, if no other side has it."""
        if side and self.holder == side:
            self._shares.end_turn(side)
            self.holder = ""
        while not (self.holder or self._expected):
            able = [
                entry
                for entry in self._waiting
                if (
                    self._sides.all_met(entry.side)
                    if entry.meets
                    else self._groups.may_go_on(entry.side, self._sides, self._shares)
                )
            ]
            if not able:
                return
            entry = able[0] if self._dice is None else _drawn(able, self._shares.turns, self._dice)
            self._waiting.remove(entry)
            self.holder = entry.side
            self._shares.begin_turn(entry.side)
            self.suspension.go_on(entry.side)
            try:
                entry.connection.sendall(bytes([self._groups.number % MOST_GROUPS]))
            except OSError:  # the process that asked has ended; a rank's side gives the turn back itself
                self.holder = ""

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            stack.callback(_end, self.suspension, self._lock)
            for one in (self._listening, self._stopping):
                stack.enter_context(one)
                selector.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    if ready is self._stopping:
                        return
                    if ready is self._listening:
                        connection, _ = ready.accept()
                        _allow_more_descriptors(connection.fileno())
                        stack.enter_context(connection)
                        selector.register(connection, selectors.EVENT_READ)
                    elif not self._heard(ready):
                        selector.unregister(ready)
                        ready.close()

    def _heard(self, connection: socket.socket) -> bool:
        """Process a request; return whether the connection stays open.

        A client sends its next request only after the answer to the previous one.
        """
        try:
            text = connection.recv(1 << 10)
        except OSError:
            text = b""
        with self._lock:
            if not text:
                self._waiting = [entry for entry in self._waiting if entry.connection is not connection]
                self.suspension.forget(connection)
                return False
            for line in text.decode("utf-8", "replace").splitlines():
                match line.split():
                    case ["give", side]:
                        self._ended(side)
                        continue
                    case ["join", side]:
                        self.suspension.join(side, connection)
                        continue
                    case ["take", side, place] if place.isdecimal():
                        self._ended(side)  # an earlier launch may have left its state
                        self._sides.begun(side, int(place))
                    case ["meet", side]:
                        self._sides.met.add(side)
                        self._groups.met[-1].add(side)
                        self._shares.count_again(side, holder=self.holder)
                    case ["offer", side]:
                        pass
                    case _:  # not a process of ours
                        self._waiting = [
                            entry for entry in self._waiting if entry.connection is not connection
                        ]
                        return False
                self._waiting.append(_Waiting(side, connection, line.startswith("meet")))
                if side in self._expected:
                    self._expected.remove(side)
                    self._waiting.sort(key=lambda entry: self._order.index(entry.side))
                self._given(side)
            for entry in self._waiting:
                self.suspension.stop(entry.side)
        return True


def _end(suspension: Suspension, lock: threading.Lock) -> None:
    with lock:
        suspension.close()


def _allow_more_descriptors(highest: int) -> None:
    """Raise this process's limit of file descriptors if half of them may be in use. Each rank that joins needs two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 2 * highest >= soft and soft not in (hard, resource.RLIM_INFINITY):
        more = 4 * soft if hard == resource.RLIM_INFINITY else min(hard, 4 * soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def _drawn(able: Sequence[_Waiting], turns: Mapping[str, int], dice: random.Random) -> _Waiting:
    """Return one of the waiting sides with the fewest turns."""
    fewest = min(turns.get(entry.side, 0) for entry in able)
    return dice.choice([entry for entry in able if turns.get(entry.side, 0) == fewest])


class Turn:
    """A process's connection to a turnstile, by which its side takes turns with other sides."""

    def __init__(self, address: str) -> None:
        """Connect to the turnstile at `address`, which is the value of `TURNSTILE` or `TURN`.

        Raises:
            TurnstileGoneError: the turnstile does not exist.
        """
        path, _, self._side = address.rpartition(" ")
        self.address = address
        self.alone = False
        """True if launches of this side need not ask for turns, because no other side takes turns."""
        self.group = 0
        """Index of the group of sides that alternate since the last turn was given."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_LOOK_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise TurnstileGoneError(f"{path} does not say whose turn it is: {error}") from None

    def join(self) -> None:
        """Let the turnstile stop this process while its side waits.

        Raises:
            TurnstileGoneError: the turnstile has been closed.
        """
        try:
            self._socket.sendall(f"join {self._side}\n".encode())
        except OSError:
            raise TurnstileGoneError(_GONE) from None

    def take(self, waiting: Callable[[], None] = lambda: None, *, place: int = 0) -> int:
        """Wait for the turn before the round's launch number `place`; return the time waited (ns).

        `waiting` is called about every second.

        Raises:
            TurnstileGoneError: the turnstile has been closed.
        """
        return self._ask("take", waiting, f" {place}")

    def offer(self, waiting: Callable[[], None] = lambda: None) -> int:
        """If another side is waiting, give it the turn and wait for the next; return the time waited (ns).

        `waiting` is called about every second.

        Raises:
            TurnstileGoneError: the turnstile has been closed.
        """
        return self._ask("offer", waiting)

    def meet(self, waiting: Callable[[], None] = lambda: None) -> int:
        """Do as `offer`, and also wait until the sides' launches at the same place have called `meet` or ended."""
        return self._ask("meet", waiting)

    def give(self) -> None:
        """Give the turn back, if this side has it; do nothing if the turnstile is gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(f"give {self._side}\n".encode())

    @contextmanager
    def held(self, waiting: Callable[[], None] = lambda: None, *, place: int = 0) -> Iterator[None]:
        """Take the turn on entry, and give it back on exit; do neither if this side is `alone`."""
        if self.alone:
            yield
            return
        self.take(waiting, place=place)
        try:
            yield
        finally:
            self.give()

    def remove(self) -> None:
        """Remove the folder of the turnstile, for a turnstile whose process was killed."""
        folder = Path(self.address.rpartition(" ")[0]).parent
        if folder.name.startswith(_FOLDER):
            remove_tree(folder, private=True)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _ask(self, verb: str, waiting: Callable[[], None], more: str = "") -> int:
        began = time.perf_counter_ns()
        try:
            self._socket.sendall(f"{verb} {self._side}{more}\n".encode())
            while (answer := self._heard()) is None:
                waiting()
        except OSError:
            answer = b""
        if not answer:
            raise TurnstileGoneError(_GONE)
        self.group = answer[0]
        return time.perf_counter_ns() - began

    def _heard(self) -> bytes | None:
        try:
            return self._socket.recv(1)
        except TimeoutError:
            return None


def _remove_left_folders() -> None:
    """Remove this user's turnstiles whose processes were killed, so that nobody listens at their sockets."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            found = folder.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime <= _STALE_S:
                continue
            probe.setblocking(False)  # a connection to a socket whose queue is full would wait without end
            try:
                probe.connect(str(folder / _SOCKET))
            except ConnectionRefusedError:
                remove_tree(folder, private=True)


def turn_from(name: str) -> Turn | None:
    """Connect to the turnstile in the environment variable `name`, and delete the variable; None if it is not set.

    Raises:
        TurnstileGoneError: the turnstile does not exist.
    """
    address = os.environ.pop(name, "")
    return Turn(address) if address else None
