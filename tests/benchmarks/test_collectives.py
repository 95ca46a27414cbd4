"""Promises of ddpbench's ring compared with the library's all-reduce, both in turn in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.fabric import fabric_capabilities
from ddpbench.formulas import PAYLOAD, TIMES
from ddpbench.units import format_bit_rate
from tests.benchmarks.conftest import Say, printed_by
from tests.benchmarks.ratio import paired_ratio

MB = 1_000_000
LINKED = ((2, 0.95), (4, 0.95), (8, 0.90))
LOOPBACK = ((2, 0.85), (4, 0.85))

pytestmark = pytest.mark.multiprocess


def pairs_of(links: str, nodes: int, count: int, pairs: int, folder: Path) -> list[tuple[float, float]]:
    printed = printed_by("ring_beside_gloo.py", links, nodes, count, pairs, folder)
    found: list[tuple[float, float]] = [(ring, gloo) for ring, gloo in printed]
    assert len(found) == pairs
    return found


@pytest.mark.links
def test_the_ring_has_the_librarys_bandwidth_on_links(full: bool, say: Say, tmp_path: Path) -> None:
    """Bound: at 64 MB on 1 Gbit/s at least 0.95 of gloo's bandwidth at 2 and 4 nodes, 0.90 at 8."""
    needs_fabrics()
    count, pairs = (64 * MB, 6) if full else (MB // 5, 2)
    _holds(say, tmp_path, "1 Gbit/s", count, pairs, LINKED if full else LINKED[:1], full=full)


def test_the_ring_has_the_librarys_bandwidth_on_loopback(full: bool, say: Say, tmp_path: Path) -> None:
    """Bound: at 16 MB on loopback at least 0.85 of gloo's bandwidth at 2 and 4 ranks."""
    count, pairs = (16 * MB, 160) if full else (MB // 5, 2)
    _holds(say, tmp_path, "", count, pairs, LOOPBACK if full else LOOPBACK[:1], full=full)


@pytest.mark.links
def test_every_algorithm_takes_what_its_formula_says(full: bool, say: Say, tmp_path: Path) -> None:
    """Bound: at 25 MB within 20 % of its formula, at 2, 3 and 4 nodes on 1 Gbit/s, and 8 on a half; the least of seven.

    Disturbances add to a transfer's time: a median of three showed up to 1.45 where others used the cores, and two
    cores hardly carry eight links of 1 Gbit/s at once.
    """
    needs_fabrics()
    count, repeats = (25 * MB, 7) if full else (MB // 5, 1)
    off: list[str] = []
    for nodes in (2, 3, 4, 8) if full else (3,):
        folder = tmp_path / f"{nodes}"
        rate = 0.5e9 if nodes == 8 else 1e9
        links = format_bit_rate(rate)
        took: dict[str, list[float]] = printed_by("beside_formula.py", links, nodes, count, repeats, folder)
        assert set(took) == set(TIMES)
        for name, (_, formula_s) in TIMES.items():
            ratio = min(took[name]) / formula_s(nodes, count, rate / 8 * PAYLOAD, 0.0)
            line = f"{name} of {count / MB:g} MB, {nodes} nodes at {links}: {ratio:.3f} of its formula's time"
            if full:
                say(f"{line}, 0.8 to 1.2")
                off += [] if 0.8 <= ratio <= 1.2 else [line]
    assert off == []


def needs_fabrics() -> None:
    found = fabric_capabilities()
    if not found.works:
        pytest.skip("; ".join(found.reasons.values()))


def _holds(
    say: Say,
    folder: Path,
    links: str,
    count: int,
    pairs: int,
    bounds: tuple[tuple[int, float], ...],
    *,
    full: bool,
) -> None:
    short: list[str] = []
    for nodes, bound in bounds:
        took = pairs_of(links, nodes, count, pairs, folder / f"{nodes}")
        ratio = paired_ratio([(gloo, ring) for ring, gloo in took])  # a ratio of bandwidths, hence inverted
        where = f"{count / MB:g} MB, {nodes} ranks on {links or 'loopback'}"
        line = f"ring / gloo's bandwidth, {where}: {ratio}, at least {bound}"
        if full:
            say(line)
            short += [] if ratio.value >= bound else [line]
    assert short == []
