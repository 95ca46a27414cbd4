"""Describe emulated links in words, from the texts in `Case.fabric`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

from ddpbench.spec.fabric import Links
from ddpbench.units import format_bit_rate

MOST_ODD = 3
"""Most nodes with an unusual rate that are named one by one."""


def links_of(fabric: str) -> Links | None:
    """Return the emulated links that a text describes; None for other texts and the machine's own links."""
    try:
        return Links.parse(fabric) if fabric else None
    except ValueError:
        return None


def local_rate(fabric: str, ranks_per_node: int) -> float | None:
    """Return the rate of the ranks' own links, bit/s; None if the ranks of a node share the node's link.

    A rank's own link also carries the rank's traffic within the node.
    """
    links = links_of(fabric)
    return links.local_bandwidth if links is not None and ranks_per_node > 1 else None


def without_latency(fabrics: Iterable[str]) -> bool:
    """Return whether at least one of these texts describes emulated links, and none of them adds latency."""
    every = [links_of(fabric) for fabric in fabrics if fabric]
    return bool(every) and all(links is not None and not links.latency_s for links in every)


@cache
def short_links(fabric: str) -> str:
    """Return the links in a few words. If nodes have different rates, the most common rate comes first.

    `1 Gbit/s, 1 Gbit/s, 1 Gbit/s, 100 Mbit/s` becomes `1 Gbit/s, node 3 at 100 Mbit/s`; nodes count from 0.
    """
    rate, rest = _parts(fabric)
    return ", ".join([rate, rest]) if rest.startswith("node") else "; ".join(filter(None, [rate, rest]))


def links_apart(fabric: str, other: str) -> str:
    """Return the links in a few words. If only the most common rate differs from `other`, return only this rate."""
    rate, rest = _parts(fabric)
    return rate if rest == _parts(other)[1] and rate != _parts(other)[0] else short_links(fabric)


@cache
def link_words(fabric: str) -> str:
    """Return a phrase for the links: `emulated 1 Gbit/s link`, `emulated 1 Gbit/s link (node 3 at 100 Mbit/s)`."""
    if not fabric:
        return ""
    rate, rest = _parts(fabric)
    return f"emulated {rate} link{f' ({rest})' if rest else ''}"


def _parts(fabric: str) -> tuple[str, str]:
    links = links_of(fabric)
    if links is None:
        return fabric, ""
    usual = Counter(links.bandwidth).most_common(1)[0][0]
    odd = [(node, rate) for node, rate in enumerate(links.bandwidth) if rate != usual]
    words = [f"node {node} at {format_bit_rate(rate)}" for node, rate in odd[:MOST_ODD]]
    if len(odd) > MOST_ODD:
        low, high = min(rate for _, rate in odd), max(rate for _, rate in odd)
        span = format_bit_rate(low) if low == high else f"{format_bit_rate(low)} to {format_bit_rate(high)}"
        words = [f"nodes {', '.join(str(node) for node, _ in odd)} at {span}"]
    rest = but_rate(fabric)
    return format_bit_rate(usual), "; ".join(filter(None, [", ".join(words), rest]))


def but_rate(fabric: str) -> str:
    """Return what follows the rates in a fabric's text; empty if nothing does."""
    return fabric.partition("; ")[2]
