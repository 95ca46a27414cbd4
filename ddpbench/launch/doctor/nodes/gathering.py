"""Exchange data between nodes: the first node listens, and the others send it their descriptions and measurements.

Connections carry unencrypted lines of JSON. A torch store (`worker/slot/meeting.py`) would not do: torch may be broken
on the hosts, and a store does not report a peer that hangs up.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter

from ddpbench.errors import LaunchError
from ddpbench.host_names import checked_address, connect
from ddpbench.launch.doctor.nodes.talking import MOST_NODES, PATIENCE_S, NodePair, Words, measure, serve
from ddpbench.records.files import parse_json
from ddpbench.text_safety import on_one_line

JOIN_S = 120.0
_MOST_LINE = 1 << 20
_HELLO = b"ddpbench doctor\n"
_TURN = b"\x01"
"""The message that tells a connected node to begin measuring the connection."""
_TURNS = 4
"""The time to wait for a node, in units of `PATIENCE_S`. The node may itself be waiting for unreachable nodes."""
_Read = TypeVar("_Read")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node's description of itself: its host, the interface that gloo uses and why, and the interface's address.

    Other nodes connect to `address` and `port`.
    """

    number: Annotated[int, Field(ge=0, lt=MOST_NODES)]
    host: Words
    interface: Words
    why: Words
    address: Annotated[str, AfterValidator(checked_address)]
    port: Annotated[int, Field(ge=0, lt=2**16)] = 0
    others: tuple[Words, ...] = ()
    """Other usable interfaces, each as `eth0 10.0.0.2`."""
    speed_mbps: Annotated[int, Field(ge=0, lt=2**40)] = 0
    faster: Words = ""
    """A description of an interface that claims at least twice the rate of the one that gloo uses; empty if none."""
    versions: tuple[Words, ...] = ()

    @property
    def name(self) -> str:
        """The node's name in sentences, such as `node 2 (hostC)`."""
        return f"node {self.number} ({self.host})"


_NODE, _NODES, _PAIRS = TypeAdapter(Node), TypeAdapter(list[Node]), TypeAdapter(list[NodePair])


class _Line:
    """A connection that carries lines of JSON. The peer is untrusted: it may send anything or nothing."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._data = b""

    def read(self, deadline: float, most: int = _MOST_LINE) -> bytes:
        """Return the next line.

        Raises:
            OSError: no line arrives before the deadline, or the line is longer than `most` bytes.
        """
        while b"\n" not in self._data[:most]:
            if len(self._data) >= most:
                raise ConnectionResetError("its message is not from this check")
            self.connection.settimeout(max(0.01, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
            part = self.connection.recv(1 << 16)
            if not part:
                raise ConnectionResetError("its connection ended")
            self._data += part
        line, _, self._data = self._data.partition(b"\n")
        return line + b"\n"

    def next_message(self, kind: TypeAdapter[_Read], deadline: float) -> _Read:
        """Return the next line, validated as `kind`.

        Raises:
            OSError: see `read`.
            ValueError: the line is not a valid message of a node.
        """
        line = self.read(deadline)
        parse_json(line)  # checks depth, numbers and texts
        return kind.validate_json(line, strict=True)

    def tell(self, value: object) -> None:
        """Send `value` as a line of JSON.

        Raises:
            OSError: the connection broke, or the peer does not receive.
        """
        self.connection.settimeout(PATIENCE_S)
        self.connection.sendall(json.dumps(value).encode() + b"\n")


def rounds_of(count: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of the nodes 0 to `count - 1`, arranged in rounds. In each round, a node is in at most one pair.

    The rounds are made by the circle method of tournaments.
    """
    ring: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append(sorted((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def take_part(
    me: Node, count: int, first: tuple[str, int], *, waiting: Callable[[str], None] = lambda _: None
) -> tuple[list[Node], list[NodePair]]:
    """Exchange descriptions with the other nodes and measure this node's links; return all nodes and measured pairs.

    Node 0, which listens at `first`, returns all pairs; others those that they measured. `waiting` gets a phrase that
    names missing nodes.

    Raises:
        LaunchError: this node cannot listen, node 0 is lost, or the nodes do not all join within `JOIN_S`.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(_listener(me.address))
        listener.settimeout(PATIENCE_S)
        me = Node(**{**asdict(me), "port": listener.getsockname()[1]})
        if me.number == 0:
            return _lead(stack, me, count, first, listener, waiting=waiting)
        return _follow(stack, me, count, first, listener)


def _listener(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family, backlog=128)
    except OSError as error:
        raise LaunchError(f"this node cannot listen at {address}: {error.strerror}") from None


def _lead(
    stack: ExitStack,
    me: Node,
    count: int,
    first: tuple[str, int],
    listener: socket.socket,
    *,
    waiting: Callable[[str], None],
) -> tuple[list[Node], list[NodePair]]:
    try:
        door = stack.enter_context(socket.create_server(("", first[1]), backlog=128))
    except OSError as error:
        raise LaunchError(
            f"cannot listen at port {first[1]}: {error.strerror}; give another --port"
        ) from None
    nodes, lines = _joined(stack, door, {0: me}, count, first, waiting=waiting)
    listed = [nodes[number] for number in range(count)]
    for line in lines.values():
        with suppress(OSError):  # a lost node is noticed below
            line.tell([asdict(node) for node in listed])
    pairs = _try_all(me, listed, listener)
    until = time.monotonic() + _answer_s(count)
    for number, line in lines.items():
        try:
            found = line.next_message(_PAIRS, until)
            pairs += [pair for pair in found if pair.a < pair.b < count and number in (pair.a, pair.b)]
        except (OSError, ValueError) as error:
            problem = f"{nodes[number].name} was lost: {on_one_line(str(error))}"
            pairs += [
                NodePair(a=min(number, other), b=max(number, other), problem=problem)
                for other in range(count)
                if other != number
            ]
    return listed, _once(pairs)


def _joined(
    stack: ExitStack,
    door: socket.socket,
    nodes: dict[int, Node],
    count: int,
    first: tuple[str, int],
    *,
    waiting: Callable[[str], None],
) -> tuple[dict[int, Node], dict[int, _Line]]:
    """Wait for all other nodes; return all nodes, and the connections by node number.

    Raises:
        LaunchError: a node did not connect in time.
    """
    lines: dict[int, _Line] = {}
    deadline = time.monotonic() + JOIN_S
    while len(nodes) < count:
        missing = sorted(set(range(count)) - set(nodes))
        waiting(f"waiting for node {', '.join(map(str, missing))}")
        door.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            if time.monotonic() > deadline:  # other programs may keep connecting
                raise TimeoutError
            connection, _ = door.accept()
        except TimeoutError:
            raise LaunchError(
                f"node {', '.join(map(str, missing))} did not connect to {first[0]}:{first[1]} within "
                f"{JOIN_S:.0f} s: check that the same command runs there, and that this name and port reach node "
                "0 from there"
            ) from None
        stack.enter_context(connection)
        line = _Line(connection)
        node = _introduced(line, min(deadline, time.monotonic() + PATIENCE_S))
        if node is None or not 0 < node.number < count:
            connection.close()  # not from a node; many such connections would use up descriptors
            continue
        if node.number in lines:
            lines[node.number].connection.close()
        nodes[node.number], lines[node.number] = node, line  # the newest, if a node was restarted
        for number in [number for number in lines if len(nodes) == count]:
            if _hung_up(lines[number].connection):  # interrupted; it may come again
                del nodes[number], lines[number]
    return nodes, lines


def _introduced(line: _Line, deadline: float) -> Node | None:
    try:
        return line.next_message(_NODE, deadline) if line.read(deadline, len(_HELLO)) == _HELLO else None
    except (OSError, ValueError):
        return None


def _hung_up(connection: socket.socket) -> bool:
    if not wait([connection], 0):
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _follow(
    stack: ExitStack, me: Node, count: int, first: tuple[str, int], listener: socket.socket
) -> tuple[list[Node], list[NodePair]]:
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            connection = connect(*first, PATIENCE_S)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"node 0 was not reached at {first[0]}:{first[1]} within {JOIN_S:.0f} s "
                    f"({error.strerror or error}): check that the same command runs on node 0, and "
                    "that this name resolves to it"
                ) from None
            time.sleep(0.2)
    stack.enter_context(connection)
    line = _Line(connection)
    try:
        connection.sendall(_HELLO)
        line.tell(asdict(me))
        listed = line.next_message(_NODES, time.monotonic() + _answer_s(count))
        if [node.number for node in listed] != [*range(count)]:
            raise ValueError(f"it listed other nodes than the {count} given here")
        pairs = _try_all(me, listed, listener)
        line.tell([pair.to_json() for pair in pairs])
    except (OSError, ValueError) as error:
        raise LaunchError(f"node 0 was lost: {on_one_line(str(error))}") from None
    return listed, pairs


def _answer_s(count: int) -> float:
    """Return the time limit (s) for all nodes together to measure all pairs."""
    return JOIN_S + count * 4 * PATIENCE_S


def _try_all(me: Node, nodes: Sequence[Node], listener: socket.socket) -> list[NodePair]:
    """Measure this node's pairs, round by round; the node with the lower number connects.

    Return the pairs that this node connected, then those whose other node did not connect.
    """
    found: list[NodePair] = []
    with ExitStack() as stack:
        early = _Early(listener, stack, range(me.number))
        for pairs in rounds_of(len(nodes)):
            for a, b in pairs:
                if a == me.number:
                    found.append(_connect(me, nodes[b]))
                elif b == me.number:
                    found += _await(nodes[a], me, early)
    return found


class _Early:
    """Connections accepted from other nodes, by node number. A node that is a round ahead connects early."""

    def __init__(self, listener: socket.socket, stack: ExitStack, expected: range) -> None:
        self._listener, self._stack, self._expected = listener, stack, expected
        self._came: dict[int, socket.socket] = {}

    def of(self, number: int) -> socket.socket | None:
        deadline = time.monotonic() + _TURNS * PATIENCE_S
        while number not in self._came:
            self._listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                if time.monotonic() > deadline:  # other programs may keep connecting
                    return None
                connection, _ = self._listener.accept()
            except TimeoutError:
                return None
            self._stack.enter_context(connection)
            connection.settimeout(PATIENCE_S)
            received = b""
            with suppress(OSError):
                received = connection.recv(4, socket.MSG_WAITALL)
            who = int.from_bytes(received, "big")
            if len(received) != 4 or who not in self._expected:
                connection.close()
                continue
            if who in self._came:
                self._came[who].close()
            self._came[who] = connection  # the newest, if a node tried again
        return self._came.pop(number)


def _connect(me: Node, other: Node) -> NodePair:
    source = None if me.address.startswith("127.") != other.address.startswith("127.") else (me.address, 0)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with connect(other.address, other.port, PATIENCE_S, source) as connection:
                connection.sendall(me.number.to_bytes(4, "big"))
                connection.settimeout(_TURNS * PATIENCE_S)
                if connection.recv(len(_TURN)) != _TURN:
                    raise ConnectionResetError("the other node hung up")
                return measure(connection, me.number, other.number)
        except OSError as error:
            refused = (
                isinstance(error, ConnectionRefusedError) and time.monotonic() < deadline - PATIENCE_S / 2
            )
            if not refused:
                words = error.strerror or str(error) or type(error).__name__
                return NodePair(
                    a=me.number, b=other.number, problem=f"{other.address}:{other.port}: {words.lower()}"
                )
            time.sleep(0.1)


def _await(other: Node, me: Node, early: _Early) -> list[NodePair]:
    """Answer while the other node measures. Return a pair only if that node does not connect."""
    connection = early.of(other.number)
    if connection is None:
        return [
            NodePair(a=other.number, b=me.number, problem=f"{other.name} did not connect to {me.address}")
        ]
    with connection, suppress(OSError):
        connection.sendall(_TURN)
        serve(connection)
    return []


def _once(pairs: Sequence[NodePair]) -> list[NodePair]:
    found: dict[tuple[int, int], NodePair] = {}
    for pair in pairs:
        known = found.get((pair.a, pair.b))
        if known is None or (known.problem and (not pair.problem or "did not connect" in known.problem)):
            found[pair.a, pair.b] = pair
    return [found[key] for key in sorted(found)]
