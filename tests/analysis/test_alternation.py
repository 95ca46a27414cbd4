"""Ratios of launches that alternated in different groups go through the launch that was in both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from ddpbench.analysis.read.alternation import (
    Alternated,
    anchor_corrections,
    busy_while_waiting,
    corrected,
    with_corrections,
)
from ddpbench.analysis.read.steptime import BlockTimes
from ddpbench.analysis.statistics.stats import compare
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.records import Block

MS = 1_000_000


def timing(step_ms: float, number: int = 0) -> Timing:
    return Timing(round=number, time_s=step_ms / 100, steps=10, samples=80, session="s")


def anchors_blocks(group_ms: list[float]) -> dict[int, BlockTimes]:
    """Return the anchor's blocks of 10 steps, two in each group."""
    each = [(group, ms) for group, ms in enumerate(group_ms) for _ in range(2)]
    return {at: BlockTimes(int(10 * ms * MS), 10, 80, (), group) for at, (group, ms) in enumerate(each)}


def test_ratios_across_groups_are_those_to_the_anchor() -> None:
    # In the second group the machine is half as fast: a is as fast as b, and both twice as fast as the anchor.
    blocks = anchors_blocks([10, 20])
    anchor = timing(15)
    factors = anchor_corrections((("a", "c"), ("b",)), anchor, [blocks])
    assert factors == pytest.approx({"a": 1.5, "c": 1.5, "b": 0.75})
    keyed = {(case, anchor.pair): factor for case, factor in factors.items()}
    (a,), (b,), (c,) = (corrected([timing(ms)], case, keyed) for case, ms in (("a", 5), ("b", 10), ("c", 4)))
    (base,) = corrected([anchor], "base", keyed)

    def ratio(one: Timing, other: Timing) -> float:
        found = compare([one], [other])
        assert found is not None
        return math.exp(found.log)

    assert ratio(a, b) == pytest.approx(1.0), "not 0.5, as without the anchor"
    assert ratio(a, base) == pytest.approx(0.5)
    assert ratio(b, base) == pytest.approx(0.5)
    assert ratio(a, c) == pytest.approx(5 / 4), "within a group nothing changes"
    assert (a.step_s, b.step_s) == (timing(5).step_s, timing(10).step_s), "own times stay"


@dataclass(frozen=True)
class _Launch:
    timing: Timing
    alternated: Alternated
    corrections: Mapping[str, float] = field(default_factory=dict)
    loss_curve: None = None


@dataclass(frozen=True)
class _Case:
    case_id: str
    launches: tuple[_Launch, ...]


def test_a_launch_that_was_repeated_alone_is_not_corrected() -> None:
    anchor = _Launch(timing(15), (("a", "c"), ("b",)), {"a": 1.5, "c": 1.5, "b": 0.75})
    others = {"a": _Launch(timing(5), (("base", "c"),)), "c": _Launch(timing(5), ())}
    cases = [_Case("base", (anchor,)), *(_Case(name, (one,)) for name, one in others.items())]
    found = {case.case_id: case.launches[0].timing for case in with_corrections(cast(Any, cases))}
    assert {name: one.correction for name, one in found.items() if one} == {"base": 1.0, "a": 1.5, "c": 1.0}


def test_a_launch_of_one_group_corrects_nothing() -> None:
    assert anchor_corrections((("a", "b"),), timing(15), [anchors_blocks([10])]) == {}
    assert anchor_corrections((), timing(15), [anchors_blocks([10])]) == {}
    assert anchor_corrections((("a",), ("b",)), timing(15), []) == {}
    assert anchor_corrections((("a",), ()), timing(10), [anchors_blocks([10])]) == {"a": 1.0}
    (other_round,) = corrected([timing(5, 1)], "a", {("a", timing(5).pair): 2.0})
    assert other_round == timing(5, 1)


def test_processor_time_of_waiting_ranks_is_counted_per_time_waited() -> None:
    block = Block(phase="timed", index=0, steps=1, samples=1, start_ns=0, end_ns=1, waited_ns=400 * MS)
    ranks = {0: {0: block, 1: replace(block, index=1)}, 1: {}}
    for index, cpu_ms in enumerate((300, 100)):
        ranks[1][index] = replace(block, index=index, waited_ns=0, waiting_cpu_ns=cpu_ms * MS)
    assert busy_while_waiting(ranks) == pytest.approx(0.5)
    assert busy_while_waiting({0: {0: block}}) is None, "too short a wait"
    assert busy_while_waiting({}) is None
