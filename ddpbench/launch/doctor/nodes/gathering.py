"""How the nodes find each other: the first one listens, the others tell it who they are and later what they found.

Lines of JSON over one connection each, in the clear: numbers and names. Nothing of it is run.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from io import BufferedRWPair
from typing import Any

from ddpbench.errors import LaunchError
from ddpbench.launch.doctor.nodes.talking import PATIENCE_S, Pair, measure, serve

JOIN_S = 120.0
_MOST_LINE = 1 << 20
_HELLO = b"ddpbench doctor\n"
_TURN = b"\x01"
"""Said to a node whose turn it is."""
_TURNS = 4
"""How many times its patience a node waits for one that may be busy: with a pair that is not reached it is for two."""
_Line = BufferedRWPair


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """What a node says of itself: its name, what gloo would use and why, and where the others are to find it."""

    number: int
    host: str
    interface: str
    why: str
    address: str
    port: int = 0
    others: tuple[str, ...] = ()
    """Other interfaces that could be meant, each `eth0 10.0.0.2`."""
    speed_mbps: int = 0
    faster: str = ""
    """An interface that claims twice the rate or more, in words."""
    versions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a sentence calls it."""
        return f"node {self.number} ({self.host})"


def rounds_of(count: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of so many nodes in rounds, in each of which no node has two (the circle method)."""
    ring: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append(sorted((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def take_part(
    me: Node, count: int, first: tuple[str, int], *, waiting: Callable[[str], None] = lambda _: None
) -> tuple[list[Node], list[Pair]]:
    """Return all nodes and what every pair found; on the first node all of it, on others their own.

    `first` is the address and port at which node 0 listens.

    Raises:
        LaunchError: the nodes do not come together within two minutes.
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
) -> tuple[list[Node], list[Pair]]:
    try:
        door = stack.enter_context(socket.create_server(("", first[1]), backlog=128))
    except OSError as error:
        raise LaunchError(
            f"port {first[1]} cannot be listened at: {error.strerror}; give another --port"
        ) from None
    lines: dict[int, _Line] = {}
    connections: dict[int, socket.socket] = {}
    nodes = {0: me}
    deadline = time.monotonic() + JOIN_S
    while len(nodes) < count:
        missing = sorted(set(range(count)) - set(nodes))
        waiting(f"waiting for node {', '.join(map(str, missing))}")
        door.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            connection, _ = door.accept()
        except TimeoutError:
            raise LaunchError(
                f"node {', '.join(map(str, missing))} did not come to {first[0]}:{first[1]} within {JOIN_S:.0f} s: is "
                "the same command running there, and does that name and port lead to this node from there?"
            ) from None
        stack.enter_context(connection)
        connection.settimeout(PATIENCE_S)
        line = stack.enter_context(connection.makefile("rwb"))
        try:
            if line.readline(len(_HELLO)) != _HELLO:
                continue  # somebody else's
            node = _node(_told(line))
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if 0 < node.number < count:  # the newest, of one that was started again
            nodes[node.number], lines[node.number] = node, line
            connections[node.number] = connection
            connection.settimeout(JOIN_S + count * 4 * PATIENCE_S)
        for number in [number for number in connections if len(nodes) == count]:
            if _hung_up(connections[number]):  # interrupted; it may come again
                del nodes[number], lines[number], connections[number]
    listed = [nodes[number] for number in range(count)]
    for line in lines.values():
        _tell(line, [asdict(node) for node in listed])
    pairs = _try_all(me, listed, listener)
    for number, line in lines.items():
        try:
            pairs += [Pair(**pair) for pair in _told(line)]
        except (OSError, ValueError, TypeError) as error:
            for other in range(count):
                if other != number:
                    a, b = min(number, other), max(number, other)
                    pairs.append(Pair(a=a, b=b, problem=f"{nodes[number].name} was lost: {error}"))
    return listed, _once(pairs)


def _hung_up(connection: socket.socket) -> bool:
    """Return whether the other side of a connection on which it has nothing to say has ended it."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _follow(
    stack: ExitStack, me: Node, count: int, first: tuple[str, int], listener: socket.socket
) -> tuple[list[Node], list[Pair]]:
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            connection = socket.create_connection(first, timeout=PATIENCE_S)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"node 0 was not reached at {first[0]}:{first[1]} within {JOIN_S:.0f} s "
                    f"({error.strerror or error}): is the same command running there, and does its name lead there?"
                ) from None
            time.sleep(0.2)
    stack.enter_context(connection)
    connection.settimeout(JOIN_S + count * 4 * PATIENCE_S)
    line = stack.enter_context(connection.makefile("rwb"))
    line.write(_HELLO)
    _tell(line, asdict(me))
    try:
        listed = [_node(node) for node in _told(line)]
        pairs = _try_all(me, listed, listener)
        _tell(line, [pair.to_json() for pair in pairs])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LaunchError(f"node 0 was lost: {error}") from None
    return listed, pairs


def _node(data: dict[str, Any]) -> Node:
    return Node(**{**data, "others": tuple(data["others"]), "versions": tuple(data["versions"])})


def _tell(line: _Line, value: object) -> None:
    line.write(json.dumps(value).encode() + b"\n")
    line.flush()


def _told(line: _Line) -> Any:
    text = line.readline(_MOST_LINE)
    if not text.endswith(b"\n"):
        raise ConnectionResetError("its connection ended")
    return json.loads(text)


def _try_all(me: Node, nodes: Sequence[Node], listener: socket.socket) -> list[Pair]:
    """Return this node's pairs, round by round: in a pair the lower number connects, and measures."""
    found: list[Pair] = []
    with ExitStack() as stack:
        early = _Early(listener, stack)
        for pairs in rounds_of(len(nodes)):
            for a, b in pairs:
                if a == me.number:
                    found.append(_connect(me, nodes[b]))
                elif b == me.number:
                    found += _await(nodes[a], me, early)
    return found


class _Early:
    """Connections by the number of the node that made them: nodes are not all in the same round."""

    def __init__(self, listener: socket.socket, stack: ExitStack) -> None:
        self._listener, self._stack = listener, stack
        self._came: dict[int, socket.socket] = {}

    def of(self, number: int) -> socket.socket | None:
        """Return a node's connection, waiting for it a while; None where it does not come."""
        deadline = time.monotonic() + _TURNS * PATIENCE_S
        while number not in self._came:
            self._listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                return None
            self._stack.enter_context(connection)
            connection.settimeout(PATIENCE_S)
            with suppress(OSError):
                told = connection.recv(4, socket.MSG_WAITALL)
                if len(told) == 4:
                    self._came[int.from_bytes(told, "big")] = (
                        connection  # the newest, of one that tried again
                    )
        return self._came.pop(number)


def _connect(me: Node, other: Node) -> Pair:
    """Return the pair as the connecting side finds it."""
    source = None if me.address.startswith("127.") != other.address.startswith("127.") else (me.address, 0)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with socket.create_connection((other.address, other.port), PATIENCE_S, source) as connection:
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
                return Pair(
                    a=me.number, b=other.number, problem=f"{other.address}:{other.port}: {words.lower()}"
                )
            time.sleep(0.1)


def _await(other: Node, me: Node, early: _Early) -> list[Pair]:
    """Serves the connecting side; its pair is told by it, or by nobody: then this side says so."""
    connection = early.of(other.number)
    if connection is None:
        return [Pair(a=other.number, b=me.number, problem=f"{other.name} did not connect to {me.address}")]
    with connection, suppress(OSError):
        connection.sendall(_TURN)
        serve(connection)
    return []


def _once(pairs: Sequence[Pair]) -> list[Pair]:
    """Return each pair once: with its numbers where a side has some, else with the connecting side's problem."""
    found: dict[tuple[int, int], Pair] = {}
    for pair in pairs:
        known = found.get((pair.a, pair.b))
        if known is None or (known.problem and (not pair.problem or "did not connect" in known.problem)):
            found[pair.a, pair.b] = pair
    return [found[key] for key in sorted(found)]
