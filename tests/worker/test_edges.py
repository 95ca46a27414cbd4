"""Counters read at a block's edges, and the records made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.measure.pacer import Pacer
from ddpbench.records import Block, Pace, Traffic
from ddpbench.worker.rank.edges import Edges
from ddpbench.worker.rank.traffic import LinkCounters

BLOCK = Block(phase="timed", index=3, steps=5, samples=5, start_ns=0, end_ns=50)
HEAD = "Inter-|   Receive  |  Transmit\n face |bytes packets errs\n"


def counted(table: Path, received: int, sent: int) -> None:
    lines = f"    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n  eth0: {received} 7 0 0 0 0 0 0 {sent} 8 0 0 0 0 0 0\n"
    table.write_text(HEAD + lines, encoding="ascii")


def test_a_block_carried_what_was_added_between_its_edges(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    edges = Edges(None, LinkCounters("eth0", 2, table))
    for received, sent in (
        (10, 20),
        (110, 320),
        (1000, 5000),
        (1100, 5007),
    ):  # two blocks, and what lies between
        counted(table, received, sent)
        edges.at_edge()
    expected = Traffic(phase="timed", index=3, steps=5, node=2, sent_bytes=7, received_bytes=100)
    assert edges.records(BLOCK) == [expected]


def test_an_interface_that_is_not_there_is_named(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    counted(table, 0, 0)
    with pytest.raises(LookupError, match="no interface eth1"):
        LinkCounters("eth1", 0, table).read()


def test_a_replays_pace_is_of_its_block_alone() -> None:
    now = [0]
    pacer = Pacer(lambda: now[0], lambda ns: None)
    pacer.update_due_ns = 40
    edges = Edges(pacer)
    assert pacer.active
    for late in (900, 30, 70):  # the first belongs to the step that is not counted
        pacer.wait(now[0] - late)
        pacer.updated(late)
        pacer.end_step()
        if late != 30:
            edges.at_edge()
    (pace,) = edges.records(replace(BLOCK, cpu_ns=95))
    assert isinstance(pace, Pace)
    assert pace.lateness_ns == (30, 70)
    assert pace.optimizer_ns == 50
    assert pace.optimizer_due_ns == 40
    assert pace.cpu_ns == 95
