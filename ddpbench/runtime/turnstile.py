"""A turnstile for launches that measure on the same cores: one computes while the others wait.

The launches, here called sides, are the two of a comparison or those of a sweep's round.

The turnstile is a Unix socket, which every process of this host can reach from any network namespace. A side takes the
turn before a launch and gives it back at its end. In between, rank 0 offers the turn before each block of steps, and a
waiting side computes one block. Before the first timed block, sides with the same number in a round (`place`) meet. So
blocks of all sides follow each other closely, and a disturbance of the machine affects all of them.

A request is a line with a verb and the side: `offer`, `meet`, `give`, or `take` with the launch's place. The turnstile
answers with one byte when the side has the turn.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddpbench.removal import TemporaryFolder, remove_tree

TURNSTILE = "DDPBENCH_TURNSTILE"
"""Environment variable of a side's sweep process with the turnstile's path and the side's name: `PATH SIDE`."""
TURN = "DDPBENCH_TURN"
"""Like `TURNSTILE`, for the ranks of a launch whose blocks of steps alternate with other sides' blocks."""
IN_TURN = "go in turn"
"""Command sent to a side's process before a round in which the sides alternate."""
WHOLE = "launches are interleaved, not blocks of their steps"
"""Beginning of a message which says why complete launches alternate, and not blocks of steps."""
_FOLDER = "ddpbench-turns-"
_GRANTED = b"."
_LOOK_S = 1.0


class TurnstileGoneError(ConnectionError):
    """The process that grants turns has ended."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A side's request for the turn. If `meets`, other launches must first reach the meeting point."""

    side: str
    connection: socket.socket
    meets: bool


class Turnstile:
    """The server of a turnstile: a socket, and a thread that gives the turn to one side at a time."""

    def __init__(self, dice: random.Random | None = None) -> None:
        """Open the turnstile's socket, and start the thread.

        With `dice`, the next side is drawn at random from the waiting sides with the fewest turns since they met.
        Without `dice`, the side that has waited longest is next.

        Raises:
            OSError: the socket cannot be made.
        """
        self._folder = TemporaryFolder(_FOLDER)
        self.path = self._folder.path / "turnstile"
        self._lock = threading.Lock()
        self._dice = dice
        self._turns: dict[str, int] = {}
        """Number of turns that each side has had in this round."""
        self._held_ns: dict[str, int] = {}
        """Time for which each side has had the turn in this round, without its present turn (ns)."""
        self._held_from_ns = 0
        self._holder = ""
        self._waiting: list[_Waiting] = []
        self._order: tuple[str, ...] = ()
        self._expected: set[str] = set()
        self._places: dict[str, int] = {}
        """Place in the round of each side's last launch, by side; -1 before the first launch."""
        self._launched: set[str] = set()
        """Sides with a running launch."""
        self._met: set[str] = set()
        """Sides whose running launch has reached the meeting point."""
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
        self._listening.listen(64)
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

    def begin(self, order: Sequence[str]) -> None:
        """Begin a round in which the sides take the turn in this order.

        The first turn is given only when each side has asked for a turn or has left the round (`leave`).
        """
        with self._lock:
            self._order, self._expected = tuple(order), set(order)
            self._holder, self._waiting = "", []
            self._places = dict.fromkeys(order, -1)
            self._launched, self._met = set(), set()
            self._turns, self._held_ns = dict.fromkeys(order, 0), dict.fromkeys(order, 0)

    @property
    def holder(self) -> str:
        """Return the side that has the turn; empty if none has it."""
        return self._holder

    @property
    def serves(self) -> bool:
        """Return whether turns are given; False if the turnstile is closed or has failed."""
        return self._thread.is_alive()

    def held_s(self, side: str) -> float:
        """Return for how long a side has had the turn in this round (s)."""
        with self._lock:
            now_ns = time.perf_counter_ns() - self._held_from_ns if self._holder == side else 0
            return (self._held_ns.get(side, 0) + now_ns) / 1e9

    def enter(self, side: str) -> None:
        """Record that a side's launch begins; it has place 0 in its round and asks for its first turn by `offer`."""
        with self._lock:
            self._places[side] = 0
            self._launched.add(side)

    def has_asked(self, side: str) -> bool:
        """Return whether a side has asked for a turn in this round, or has left the round."""
        with self._lock:
            return side not in self._expected

    def leave(self, side: str) -> None:
        """Record that a side needs no more turns in this round: take the turn from the side, and don't wait for it."""
        with self._lock:
            self._expected.discard(side)
            self._places.pop(side, None)
            self._ended(side)

    def _ended(self, side: str) -> None:
        self._waiting = [entry for entry in self._waiting if entry.side != side]
        self._launched.discard(side)
        self._met.discard(side)
        self._given(side)

    def _given(self, side: str) -> None:
        if self._holder == side:
            spent_ns = time.perf_counter_ns() - self._held_from_ns
            self._held_ns[side] = self._held_ns.get(side, 0) + spent_ns
            self._holder = ""
        while not (self._holder or self._expected):
            entry = self._next()
            if entry is None:
                return
            self._waiting.remove(entry)
            self._holder, self._held_from_ns = entry.side, time.perf_counter_ns()
            self._turns[entry.side] = self._turns.get(entry.side, 0) + 1
            try:
                entry.connection.sendall(_GRANTED)
            except OSError:  # the process that asked has ended; a rank's side gives the turn back itself
                self._holder = ""

    def _next(self) -> _Waiting | None:
        able = [entry for entry in self._waiting if self._may_go_on(entry)]
        if self._dice is None or not able:
            return able[0] if able else None
        fewest = min(self._turns.get(entry.side, 0) for entry in able)
        return self._dice.choice([entry for entry in able if self._turns.get(entry.side, 0) == fewest])

    def _may_go_on(self, entry: _Waiting) -> bool:
        if not entry.meets:
            return True
        here = self._places.get(entry.side, -1)
        return all(
            there > here or (there == here and (side in self._met or side not in self._launched))
            for side, there in self._places.items()
            if side != entry.side
        )

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
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
                return False
            for line in text.decode("utf-8", "replace").splitlines():
                match line.split():
                    case ["give", side]:
                        self._ended(side)
                        continue
                    case ["take", side, place] if place.isdecimal():
                        self._ended(side)  # an earlier launch may have left its state
                        self._launched.add(side)
                        self._places[side] = int(place)
                    case ["meet", side]:
                        self._met.add(side)
                        self._turns[side] = 0
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
        return True


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
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_LOOK_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise TurnstileGoneError(f"{path} does not say whose turn it is: {error}") from None

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
            raise TurnstileGoneError("the process that says whose turn it is has ended")
        return time.perf_counter_ns() - began

    def _heard(self) -> bytes | None:
        try:
            return self._socket.recv(1)
        except TimeoutError:
            return None


def turn_from(name: str) -> Turn | None:
    """Connect to the turnstile in the environment variable `name`, and delete the variable; None if it is not set.

    Raises:
        TurnstileGoneError: the turnstile does not exist.
    """
    address = os.environ.pop(name, "")
    return Turn(address) if address else None
