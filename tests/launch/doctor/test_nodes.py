"""Findings on nodes: on real sockets, with planted faults, and from made-up numbers."""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace

import pytest

from ddpbench.errors import LaunchError, RequestError
from ddpbench.launch.doctor.host import Host
from ddpbench.launch.doctor.nodes import gathering, talking
from ddpbench.launch.doctor.nodes.checking import own_node, seat_of
from ddpbench.launch.doctor.nodes.gathering import Node, rounds_of, take_part
from ddpbench.launch.doctor.nodes.judging import judged
from ddpbench.launch.doctor.nodes.talking import NodePair
from ddpbench.machine.interfaces import Interface

LOOPBACK = Interface("lo", True, ("127.0.0.1",))
ETHERNET = Interface("eth0", True, ("10.0.0.2",), 10_000)


def node(number: int, host: str = "", address: str = "127.0.0.1", **more: object) -> Node:
    made = Node(
        number=number,
        host=host or f"h{number}",
        interface="eth0",
        why="x",
        address=address,
        versions=("torch 2",),
    )
    return replace(made, **more)  # type: ignore[arg-type]


NODE = node(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("count", range(2, 12))
def test_every_pair_comes_once_and_no_node_has_two_at_a_time(count: int) -> None:
    rounds = rounds_of(count)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(itertools.combinations(range(count), 2))
    for pairs in rounds:
        assert len({number for pair in pairs for number in pair}) == 2 * len(pairs)
    assert len(rounds) == count - 1 + count % 2


def together(
    nodes: list[Node], change: Callable[[Node], Node] = lambda one: one
) -> dict[int, tuple[list[Node], list[NodePair]] | Exception]:
    port = free_port()
    found: dict[int, tuple[list[Node], list[NodePair]] | Exception] = {}

    def part(one: Node) -> None:
        try:
            found[one.number] = take_part(change(one), len(nodes), ("127.0.0.1", port))
        except Exception as error:  # for the test to look at
            found[one.number] = error

    threads = [threading.Thread(target=part, args=(one,)) for one in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talking, "STREAM_S", 0.05)
    monkeypatch.setattr(talking, "WARM_S", 0.01)
    monkeypatch.setattr(gathering, "PATIENCE_S", 2.0)
    monkeypatch.setattr(gathering, "JOIN_S", 5.0)


@pytest.mark.usefixtures("quick")
def test_nodes_measure_each_pair_once() -> None:
    found = together([node(number) for number in range(4)])
    first = found[0]
    assert not isinstance(first, Exception), first
    nodes, pairs = first
    assert [one.number for one in nodes] == [0, 1, 2, 3]
    assert [(pair.a, pair.b) for pair in pairs] == list(itertools.combinations(range(4), 2))
    for pair in pairs:
        assert not pair.problem
        assert pair.slower > 1e8  # memory to memory
        assert 0 < pair.latency_s < 0.1
        assert abs(pair.clock_s) <= pair.clock_error_s + 1e-3  # both nodes share a clock


@pytest.mark.usefixtures("quick")
def test_a_node_that_cannot_be_connected_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gathering._connect

    def connect(me: Node, other: Node) -> NodePair:
        return real(me, replace(other, address="127.0.0.2") if other.number == 2 else other)

    monkeypatch.setattr(gathering, "_connect", connect)
    first = together([node(number) for number in range(3)])[0]
    assert not isinstance(first, Exception), first
    bad = [(pair.a, pair.b) for pair in first[1] if pair.problem]
    assert bad == [(0, 2), (1, 2)]
    problems = [
        finding for finding in judged(*first) if " - " in finding.subject and finding.level == "problem"
    ]
    assert [finding.subject for finding in problems] == ["h0 - h2", "h1 - h2"]
    assert "refused" in problems[0].found


@pytest.mark.usefixtures("quick")
def test_who_does_not_come_is_named() -> None:
    port = free_port()
    with pytest.raises(LaunchError, match=r"node 1, 2 did not connect to 127\.0\.0\.1"):
        take_part(node(0), 3, ("127.0.0.1", port))
    with pytest.raises(LaunchError, match="node 0 was not reached"):
        take_part(node(1), 3, ("127.0.0.1", port))


@pytest.mark.usefixtures("quick")
def test_a_name_that_no_host_has_is_not_reached() -> None:
    with pytest.raises(LaunchError, match=r"node 0 was not reached at node1\.\.cluster"):
        take_part(node(1), 2, ("node1..cluster", free_port()))
    with pytest.raises(LaunchError, match="node 0 was not reached"):
        take_part(node(1), 2, ("a" * 64, free_port()))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"ddpbench doctor\nnonsense\n",
        b'ddpbench doctor\n{"number": 1}\n',
        b"",
        b"ddpbench doctor\n" + b"[" * 200_000 + b"\n",
        b"ddpbench doctor\n" + b" " * 2_000_000,
        *(
            b"ddpbench doctor\n" + json.dumps({**asdict(NODE), **odd}).encode() + b"\n"
            for odd in (
                {"number": "1"},
                {"number": None},
                {"number": 0.5},
                {"number": 10**400},
                {"address": 5},
                {"address": "a" * 300},
                {"address": f"fe80::1%{'a' * 90}"},
                {"address": "fe80::1%\x1b[2J"},
                {"port": 2**40},
                {"port": "1"},
                {"versions": [[]]},
                {"host": "\ud800"},
                {"speed_mbps": math.inf},
            )
        ),
    ],
    ids=lambda said: said[16:60].decode() + str(len(said)),
)
def test_a_stranger_at_the_port_is_passed_over(said: bytes) -> None:
    port = free_port()
    got: list[object] = []
    lead = threading.Thread(target=lambda: got.append(take_part(node(0), 2, ("127.0.0.1", port))))
    lead.start()
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as stranger:
                stranger.sendall(said)
            break
        except OSError:
            threading.Event().wait(0.02)
    take_part(node(1), 2, ("127.0.0.1", port))
    lead.join(30)
    ((nodes, pairs),) = got  # type: ignore[misc]
    assert len(nodes) == 2
    assert not pairs[0].problem


def links(rates: dict[tuple[int, int], float], count: int, usual: float = 1e10) -> list[NodePair]:
    return [
        NodePair(a=a, b=b, latency_s=1e-5, a_to_b=rates.get((a, b), usual), b_to_a=usual, clock_error_s=1e-5)
        for a, b in itertools.combinations(range(count), 2)
    ]


def slow(nodes: list[Node], pairs: list[NodePair]) -> list[str]:
    return [finding.subject for finding in judged(nodes, pairs) if finding.subject.startswith("slow")]


def test_a_slow_node_is_told_from_a_slow_link() -> None:
    nodes = [node(number) for number in range(4)]
    assert slow(nodes, links({}, 4)) == []
    assert slow(nodes, links({(1, 3): 1e9}, 4)) == ["slow: h1 - h3"]
    assert slow(nodes, links({(0, 2): 1e9, (1, 2): 1e9, (2, 3): 1e9}, 4)) == ["slow: node 2 (h2)"]
    both = {(0, 2): 1e9, (1, 2): 1e9, (2, 3): 1e9, (0, 1): 2e9}
    assert slow(nodes, links(both, 4)) == ["slow: node 2 (h2)", "slow: h0 - h1"]
    assert slow(nodes, links({(0, 1): 8e9}, 4)) == []  # normal differences between links
    assert slow(nodes[:2], links({(0, 1): 1.0}, 2)) == []  # there is nothing to compare with


def test_a_link_below_what_its_interfaces_claim_is_noted() -> None:
    nodes = [node(number, speed_mbps=100_000) for number in range(2)]
    slow = [replace(pair, a_to_b=4e9, b_to_a=4e9) for pair in links({}, 2)]
    (only,) = [finding for finding in judged(nodes, slow) if finding.level == "note"]
    assert "but the interfaces report 100 Gbit/s" in only.found
    fine = [replace(pair, a_to_b=6e9, b_to_a=6e9) for pair in slow]  # one stream cannot fill such a link
    assert not [finding for finding in judged(nodes, fine) if finding.level == "note"]


def test_a_faster_interface_than_the_one_used_is_noted() -> None:
    nodes = [node(0, address="10.0.0.2", faster="ib0 (200 Gbit/s)"), node(1, address="10.0.0.3")]
    first, second, *_ = judged(nodes, [])
    assert (first.level, second.level) == ("note", "ok")
    assert first.found == "eth0 10.0.0.2 (x), where ib0 (200 Gbit/s) is faster"


def test_a_loopback_name_is_said_with_the_fix() -> None:
    nodes = [node(0, address="127.0.1.1", others=("eth0 10.0.0.2",)), node(1, address="10.0.0.3")]
    pairs = [NodePair(a=0, b=1, problem="10.0.0.3:1: timed out")]
    first, *_ = judged(nodes, pairs)
    assert first.level == "problem"
    assert "GLOO_SOCKET_IFNAME to one of: eth0 10.0.0.2" in first.advice


def test_clocks_and_versions() -> None:
    nodes = [node(0), node(1, versions=("torch 3",))]
    pairs = [replace(pair, clock_s=-3.0) for pair in links({}, 2)]
    by_subject = {finding.subject: finding for finding in judged(nodes, pairs)}
    assert by_subject["clocks"].level == "note"
    assert "are 3 s apart" in by_subject["clocks"].found
    assert by_subject["versions"].level == "problem"
    assert by_subject["versions"].found == "torch 2 on node 0 (h0); torch 3 on node 1 (h1)"


def host(**more: object) -> Host:
    made = Host(host_name="n2.cluster", env={})
    made.interfaces = lambda: (LOOPBACK, ETHERNET)  # type: ignore[method-assign]
    made.resolve = lambda _: ["10.0.0.2"]  # type: ignore[method-assign]
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_a_node_finds_itself_by_name_address_or_launcher() -> None:
    assert seat_of("n1,n2,n3", host(), {}).number == 1
    assert seat_of("10.0.0.1,10.0.0.2", host(), {}).number == 1
    assert seat_of("a,b", host(), {"RANK": "1", "LOCAL_RANK": "0"}).number == 1
    srun = {"SLURM_NODEID": "1", "SLURM_LOCALID": "2", "SLURM_NTASKS": "6"}
    assert seat_of("a,b", host(), srun).spare
    for names, sentence in (
        ("n1,n3", "matches none of these names"),
        ("n2,n2.cluster", "matches several of these names"),
        ("n2", "two host names"),
        ("n2,n1,n1", "n1 is named twice, but each node must be a separate host"),
        ("n2,1", "give the nodes' host names"),
        ("n1,,n2", "two host names"),
        ("slurm", "not a Slurm job"),
        ("n2,n1..cluster", "'n1..cluster' is not a host name: a name has 253 characters at most"),
        (f"{'a' * 64},n2", "is not a host name"),
    ):
        with pytest.raises(RequestError, match=sentence):
            seat_of(names, host(), {})
    with pytest.raises(RequestError, match="names 2 nodes, but RANK says that this node is number 7"):
        seat_of("a,b", host(), {"RANK": "7"})


def test_a_node_says_what_gloo_would_use() -> None:
    seat = seat_of("n1,n2", host(), {})
    described = own_node(seat, host())
    assert (described.interface, described.address, described.speed_mbps) == ("eth0", "10.0.0.2", 10_000)
    assert json.dumps(described.versions)
    assert described.faster == ""
    infiniband = Interface("ib0", True, ("10.1.0.2",), 200_000)
    faster = replace(host(), interfaces=lambda: [LOOPBACK, ETHERNET, infiniband])
    assert own_node(seat, faster).faster == "ib0 (200 Gbit/s)"
    with pytest.raises(LaunchError, match="GLOO_SOCKET_IFNAME=ib0 names an interface that is not on n2"):
        own_node(seat, host(env={"GLOO_SOCKET_IFNAME": "ib0"}))


def test_one_slow_pair_leaves_the_others_alone(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in later rounds connect before their turn, to a node that is still busy."""
    real = gathering.measure

    def slow(connection: socket.socket, a: int, b: int) -> NodePair:
        if (a, b) == (0, 5):
            time.sleep(1.5)
        return real(connection, a, b)

    monkeypatch.setattr(gathering, "measure", slow)
    found = together([node(number) for number in range(6)])
    assert not isinstance(found[0], Exception)
    _, pairs = found[0]
    assert [(pair.a, pair.b) for pair in pairs] == list(itertools.combinations(range(6), 2))
    assert [pair.problem for pair in pairs] == [""] * 15


def test_a_node_that_was_started_again_counts(quick: None) -> None:
    port = free_port()
    found: dict[int, tuple[list[Node], list[NodePair]]] = {}

    def part(number: int) -> None:
        found[number] = take_part(node(number), 3, ("127.0.0.1", port))

    threads = [threading.Thread(target=part, args=(number,)) for number in range(3)]
    threads[0].start()
    deadline = time.monotonic() + 5
    while True:  # one that identified itself and was interrupted
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                introduction = json.dumps(asdict(node(1, port=1))).encode()
                connection.sendall(b"ddpbench doctor\n" + introduction + b"\n")
                time.sleep(0.2)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    threads[2].start()
    time.sleep(0.5)  # all have connected by now, if the interrupted one counted
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert [pair.problem for pair in found[0][1]] == ["", "", ""]


def test_numbers_of_nodes_are_those_of_a_launcher_of_several_ranks() -> None:
    env = {"RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
    assert seat_of("hostA,hostB", Host(env={}), env).number == 1
    assert seat_of("hostA,hostB", Host(env={}), env).spare


def test_who_says_a_little_at_a_time_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, but the line never ends."""
    monkeypatch.setattr(gathering, "PATIENCE_S", 0.5)
    monkeypatch.setattr(gathering, "JOIN_S", 3.0)
    port, ended = free_port(), threading.Event()

    def drip() -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(b"ddpbench doctor\n")
            while not ended.wait(0.05):
                stranger.sendall(b" ")

    got: list[object] = []

    def lead() -> None:
        try:
            got.append(take_part(node(0), 2, ("127.0.0.1", port)))
        except LaunchError as error:
            got.append(error)

    leading, dripping = threading.Thread(target=lead, daemon=True), threading.Thread(target=drip)
    leading.start()
    time.sleep(0.3)
    dripping.start()
    leading.join(15)
    ended.set()
    dripping.join()
    assert "node 1 did not connect to" in str(got)


def test_strangers_who_keep_coming_do_not_put_off_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener waits for each of them; nodes after them in the queue come too late."""
    monkeypatch.setattr(gathering, "PATIENCE_S", 0.5)
    monkeypatch.setattr(gathering, "JOIN_S", 1.0)
    port = free_port()

    def knock(stack: ExitStack) -> None:
        for said in [b""] * 8 + [b"ddpbench doctor\n" + json.dumps(asdict(NODE)).encode() + b"\n"]:
            for _ in range(100):
                with suppress(OSError):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), 1)).sendall(said)
                    break
                time.sleep(0.02)

    with ExitStack() as stack:
        knocking = threading.Thread(target=knock, args=(stack,))
        knocking.start()
        with pytest.raises(LaunchError, match="node 1 did not connect to"):
            take_part(node(0), 2, ("127.0.0.1", port))
        knocking.join(30)


@pytest.mark.usefixtures("quick")
def test_many_strangers_do_not_use_up_the_descriptors() -> None:
    port = free_port()
    got: list[object] = []
    lead = threading.Thread(target=lambda: got.append(take_part(node(0), 2, ("127.0.0.1", port))))
    lead.start()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(50):
        for _ in range(100):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while stranger.recv(100):  # until it is refused
                    pass
                break
            time.sleep(0.02)
    after = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    take_part(node(1), 2, ("127.0.0.1", port))
    lead.join(30)
    assert got
    assert after < before + 40


@pytest.mark.parametrize("side", [talking.serve, lambda connection: talking.measure(connection, 0, 1)])
def test_a_pair_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch, side: Callable[[socket.socket], object]
) -> None:
    """The other end sends, but never what ends the exchange."""
    monkeypatch.setattr(talking, "MEASURED_S", 0.5)
    monkeypatch.setattr(talking, "STREAM_S", 0.05)
    ours, theirs = socket.socketpair()

    def send() -> None:
        with suppress(OSError):
            while True:
                theirs.sendall(b"\x01" * 4096)

    def take() -> None:
        with suppress(OSError):
            while theirs.recv(1 << 16):
                pass

    for work in (send, take):
        threading.Thread(target=work, daemon=True).start()
    ended: list[BaseException] = []

    def run() -> None:
        try:
            side(ours)
        except OSError as error:
            ended.append(error)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    running.join(15)
    alive = running.is_alive()
    for one in (ours, theirs):
        one.close()
    assert not alive


def test_what_a_node_says_is_words_on_one_line() -> None:
    node = gathering._NODE.validate_json(
        json.dumps({**asdict(NODE), "host": "a\nall 3 nodes are fine\x1b[2J"})
    )
    assert node.name.splitlines() == [node.name]
