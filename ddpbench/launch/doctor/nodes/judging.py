"""Findings about a job's nodes and links: which are slow or cannot be reached, and what to do."""

from __future__ import annotations

import ipaddress
import itertools
import statistics
from collections.abc import Iterator, Sequence

from ddpbench.launch.doctor.finding import CheckResult, note, ok, problem
from ddpbench.launch.doctor.nodes.gathering import Node
from ddpbench.launch.doctor.nodes.talking import NodePair
from ddpbench.units import format_bit_rate, format_seconds

SLOW = 0.7
"""A link is slow below this fraction of the other links' median rate."""
OF_THE_INTERFACE = 0.5
"""A link is noted if it is slower than this fraction of its interfaces' claimed rate (at most `ONE_STREAM`)."""
ONE_STREAM = 10e9
"""The highest rate expected of one connection, bit/s. Python may be too slow to fill a faster link."""
CLOCKS_APART_S = 0.5
"""The clock difference of two nodes above which their logs are hard to compare; measurements do not depend on it."""


def judged(nodes: Sequence[Node], pairs: Sequence[NodePair]) -> list[CheckResult]:
    """Return findings about each node's interface, each pair's link, slow links, clocks and versions."""
    return [
        *_interfaces(nodes),
        *_links(nodes, pairs),
        *_slow(nodes, [pair for pair in pairs if not pair.problem]),
        *_clocks(nodes, pairs),
        *_versions(nodes),
    ]


def _rate(bits_per_s: float) -> str:
    return format_bit_rate(float(f"{bits_per_s:.3g}"))


def _interfaces(nodes: Sequence[Node]) -> Iterator[CheckResult]:
    several = len({node.host for node in nodes}) > 1
    for node in nodes:
        address = f"{node.interface} {node.address} ({node.why})"
        if several and ipaddress.ip_address(node.address).is_loopback:
            others = ", ".join(node.others)
            fix = (
                f"set GLOO_SOCKET_IFNAME to one of: {others}"
                if others
                else "this node has no other interface: see ip address"
            )
            yield problem(
                node.name,
                f"{address}: no other node reaches a loopback address",
                f"{fix}; or give the host's name another address in /etc/hosts",
            )
        elif several and node.faster:
            yield note(
                node.name,
                f"{address}, where {node.faster} is faster",
                "if that interface connects the nodes, set GLOO_SOCKET_IFNAME to its name and run this again",
            )
        else:
            yield ok(node.name, address)


def _links(nodes: Sequence[Node], pairs: Sequence[NodePair]) -> Iterator[CheckResult]:
    for pair in pairs:
        a, b = nodes[pair.a], nodes[pair.b]
        subject = f"{a.host} - {b.host}" if a.host != b.host else f"nodes {a.number} - {b.number}"
        if pair.problem:
            yield problem(
                subject,
                f"not reached: {pair.problem}",
                f"open the ports between them (a firewall, a security group), or choose another interface on both: "
                f"{a.name} uses {a.interface}, {b.name} {b.interface}",
            )
            continue
        rates = f"{_rate(pair.a_to_b)} there, {_rate(pair.b_to_a)} back"
        measured = f"{rates}; {format_seconds(pair.latency_s)} one way"
        claimed = 1e6 * min(a.speed_mbps, b.speed_mbps)
        if claimed and pair.slower < OF_THE_INTERFACE * min(claimed, ONE_STREAM):
            yield note(
                subject,
                f"{measured}, but the interfaces report {_rate(claimed)}",
                "look for other traffic, a cable or port with a lower speed, or a slower interface in use",
            )
        else:
            yield ok(subject, measured)


def _slow(nodes: Sequence[Node], pairs: Sequence[NodePair]) -> Iterator[CheckResult]:
    """Report nodes whose links are all slow, then slow links between the remaining nodes."""
    if len(pairs) < 3:
        return  # the one link of two nodes has nothing to compare with
    named: set[int] = set()
    for node in nodes:
        own = [pair for pair in pairs if node.number in (pair.a, pair.b)]
        others = [pair for pair in pairs if pair not in own]
        if not own or not others:
            continue
        usual = statistics.median(pair.slower for pair in others)
        if all(pair.slower < SLOW * usual for pair in own) and len(own) > 1:
            named.add(node.number)
            rate = statistics.median(pair.slower for pair in own)
            yield problem(
                f"slow: {node.name}",
                f"all its {len(own)} links are slow: {_rate(rate)}, the others' {_rate(usual)}",
                "leave this node out (Slurm: --exclude), or have its interface and cable checked: "
                "every collective waits for it",
            )
    left = [pair for pair in pairs if not named & {pair.a, pair.b}]
    median = statistics.median(pair.slower for pair in left) if left else 0.0
    for pair in left:
        if pair.slower < SLOW * median:
            yield problem(
                f"slow: {nodes[pair.a].host} - {nodes[pair.b].host}",
                f"{_rate(pair.slower)}, the median of the other nodes' links is {_rate(median)}",
                "check the switch between the two nodes: a ring over all nodes is as slow as this link",
            )


def _clocks(nodes: Sequence[Node], pairs: Sequence[NodePair]) -> Iterator[CheckResult]:
    known = [pair for pair in pairs if not pair.problem]
    if not known:
        return
    worst = max(known, key=lambda pair: abs(pair.clock_s))
    apart = abs(worst.clock_s)
    a, b = nodes[worst.a], nodes[worst.b]
    within = f"known to within {format_seconds(worst.clock_error_s)}"
    if apart > max(CLOCKS_APART_S, worst.clock_error_s):
        yield note(
            "clocks",
            f"{a.name} and {b.name} are {format_seconds(apart)} apart ({within})",
            "run a time service (chrony, ntpd). ddpbench does not compare clocks of two hosts, but "
            "logs become hard to read",
        )
    else:
        yield ok("clocks", f"at most {format_seconds(max(apart, worst.clock_error_s))} apart ({within})")


def _versions(nodes: Sequence[Node]) -> Iterator[CheckResult]:
    for versions in itertools.zip_longest(*(node.versions for node in nodes), fillvalue="nothing"):
        if len(set(versions)) > 1:
            by_version: dict[str, list[str]] = {}
            for node, version in zip(nodes, versions, strict=True):
                by_version.setdefault(version, []).append(node.name)
            listed = "; ".join(f"{version} on {', '.join(names)}" for version, names in by_version.items())
            yield problem("versions", listed, "install the same versions on all nodes", blocks=True)
        else:
            yield ok("versions", f"{versions[0]} everywhere")
