"""Fidelity of the frameworks' strategies: their numbers are those of a loop written by hand in the framework."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Say, torchrun
from tests.benchmarks.ratio import paired_ratio

pytestmark = [pytest.mark.multiprocess, pytest.mark.framework("accelerate", "lightning")]

MEASURED = [(loop, world) for loop in ("accelerate", "fabric", "trainer") for world in (1, 2)]
SHOWN_TO_WORK = [("accelerate", 1), ("fabric", 1), ("trainer", 2)]
BRIEF = ("--pairs", 2, "--pairs-max", 2, "--block-seconds", 0.02)
LONG = ("--pairs", 60, "--pairs-max", 400, "--block-seconds", 0.2)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("--ratios", default=False)
    metafunc.parametrize(("loop", "world"), MEASURED if full else SHOWN_TO_WORK)


def test_blocks_in_turn_with_a_loop_in_the_framework(
    loop: str, world: int, full: bool, say: Say, tmp_path: Path
) -> None:
    """Bound: the 95 % interval of strategy / hand-written loop lies within 0.97 to 1.03.

    Pairs are added until the interval is 0.8 % to either side, at least 60 and at most 400.
    """
    out = tmp_path / "pairs.json"
    told = ("--loop", loop, "--workload", "gpt:nano", "--out", out)
    torchrun("framework_loops.py", world, *told, *(LONG if full else BRIEF))
    pairs = [(one, other) for one, other in json.loads(out.read_text(encoding="utf-8"))["pairs"]]
    assert all(one > 0 and other > 0 for one, other in pairs)
    if full:
        ratio = paired_ratio(pairs)
        say(f"strategy / loop written in it, {loop} at {world}: {ratio}, within 0.97 to 1.03")
        assert 0.97 <= ratio.low <= ratio.high <= 1.03
