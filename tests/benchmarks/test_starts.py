"""The effect of the way of starting ranks on a step: the kept starts, and that every way works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.benchmarks.kept_pairs import STARTS
from tests.benchmarks.ratio import Ratio
from tests.benchmarks.starts import Found, ratio, read, table, together
from tests.processes import python_path

ROOT = Path(__file__).parents[2]


LAUNCHES = ("launches-1", "launches-2")
"""Two files of the same two ways to start, read as one."""
ALIKE = "blocks-alike-2"
"""Interleaved blocks that both sides cut alike."""
IN_TURN = (ALIKE, "blocks-alike-1", "blocks-ddp-2", "blocks-single-1")
OF_FORKS = {"blocks-harness-fork-2": "fork-all"}
"""Files without torchrun, and the way that is the base of their ratios."""
KEPT = (
    ("ddp-2",),
    ("single-1",),
    LAUNCHES,
    *((name,) for name in (*IN_TURN, "blocks-fork-2", "blocks-long-2", *OF_FORKS)),
)


def kept(names: Sequence[str]) -> dict[str, list[Found]]:
    return read(*(STARTS / f"{name}.csv" for name in names))


def harness_over_torchrun(names: Sequence[str]) -> Ratio:
    found = kept(names)
    return ratio(found["harness"], found["torchrun"])


@pytest.mark.parametrize("names", KEPT, ids="+".join)
def test_the_kept_starts_give_the_ratios_of_their_readme(names: tuple[str, ...]) -> None:
    text = " ".join((STARTS / "README.md").read_text(encoding="utf-8").split())
    base = OF_FORKS.get(names[0], "torchrun")
    for line in table(kept(names), base):
        if not line.startswith(f"{base}: "):  # over itself
            assert line in text, line


@pytest.mark.parametrize("name", ["ddp-2", "single-1"])
def test_its_readme_has_forked_ways_over_the_others_with_their_correlation(name: str) -> None:
    found = kept((name,))
    one = ratio(together(found, "fork-all,harness"), together(found, "exec,torchrun"))
    text = (STARTS / "README.md").read_text(encoding="utf-8")
    assert f"{one.value:.4f} [{one.low:.4f}, {one.high:.4f}]" in text


def test_several_ways_are_one_by_the_geometric_mean_of_each_round() -> None:
    found = together({"a": starts(1.0, 2.0), "b": starts(4.0, 8.0), "c": starts(9.0, 9.0)}, "a,b")
    assert [one[0] for one in found] == pytest.approx([2.0, 4.0])
    assert [one[1] for one in found] == pytest.approx([1.0, 2.0])


def test_every_file_of_starts_is_read() -> None:
    assert {path.stem for path in STARTS.glob("*.csv")} == {name for names in KEPT for name in names}


def test_the_method_has_the_ratio_of_a_harness_launch() -> None:
    one = harness_over_torchrun(LAUNCHES)
    assert one.pairs == 250
    assert f"{one.value:.4f} [{one.low:.4f}, {one.high:.4f}]" in (ROOT / "reports/README.md").read_text(
        "utf-8"
    )


def test_starts_are_kept_and_the_method_has_their_ratios() -> None:
    method = (ROOT / "reports/README.md").read_text(encoding="utf-8")
    for name in ("ddp-2", "single-1"):
        found = read(STARTS / f"{name}.csv")
        for way in ("exec", "fork-all", "harness"):
            one = ratio(found[way], found["torchrun"])
            assert f"{one.value:.4f} [{one.low:.4f}, {one.high:.4f}]" in method, (name, way)


@pytest.mark.parametrize("name", IN_TURN)
def test_the_method_has_what_a_harness_launch_costs_in_turn(name: str) -> None:
    one = harness_over_torchrun((name,))
    assert f"{one.value:.4f} [{one.low:.4f}, {one.high:.4f}]" in (ROOT / "reports/README.md").read_text(
        "utf-8"
    )


@pytest.mark.parametrize("names", [LAUNCHES, (ALIKE,)], ids="+".join)
def test_the_readme_has_what_a_harness_launch_of_ddp_costs(names: tuple[str, ...]) -> None:
    one = harness_over_torchrun(names)
    value, low, high = (f"{100 * (end - 1):.1f}".replace("-", "−") for end in (one.value, one.low, one.high))
    assert f"{value} % [{low}, {high}]" in " ".join((ROOT / "README.md").read_text("utf-8").split())


def starts(*step_s: float) -> list[Found]:
    return [(one, one / 2, 0.0) for one in step_s]


def test_a_ratio_is_the_geometric_mean_of_rounds_with_its_t_interval() -> None:
    found = ratio(starts(2.0, 1.0, 2.0, 1.0), starts(1.0, 1.0, 1.0, 1.0))
    assert found.value == pytest.approx(2**0.5)
    # by hand: logs 0.693, 0, 0.693, 0: standard error 0.2001, times 3.182
    assert found.high / found.value == pytest.approx(1.890, abs=0.001)


def test_rounds_that_resemble_their_neighbours_widen_the_interval() -> None:
    base = starts(*[1.0] * 8)
    apart = ratio(starts(2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0), base)
    alike = ratio(starts(2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0), base)
    assert alike.value == pytest.approx(apart.value)
    assert alike.high > 1.5 * apart.high


def test_an_incomplete_round_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "starts.csv"
    path.write_text(
        "round,place,way,step_s,cpu_s,minor_faults\n0,0,fork,1,1,0\n0,1,exec,1,1,0\n1,0,exec,1,1,0\n"
    )
    with pytest.raises(ValueError, match="a round is incomplete"):
        read(path)


def started(out: Path, *words: str) -> dict[str, list[Found]]:
    subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.starts", *words, "--seconds", "0.05", "--out", out],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
        check=True,
        timeout=300,
    )
    found = read(out)
    assert all(step_s > 0 and cpu_s > 0 for own in found.values() for step_s, cpu_s, _ in own)
    return found


@pytest.mark.thorough
@pytest.mark.multiprocess
@pytest.mark.parametrize("world", [1, 2])
def test_every_way_starts_the_loop(world: int, tmp_path: Path) -> None:
    strategy = "ddp" if world > 1 else "single"
    words = ("--strategy", strategy, "--world-size", str(world), "--rounds", "1")
    assert len(started(tmp_path / "starts.csv", *words)) == 8


@pytest.mark.thorough
@pytest.mark.multiprocess
@pytest.mark.parametrize("ways", ["torchrun,harness", "exec,fork-all", "exec-all,fork"])
def test_two_ways_take_turns(ways: str, tmp_path: Path) -> None:
    found = started(tmp_path / "starts.csv", "--in-turn", "--ways", ways, "--rounds", "2")
    assert set(found) == set(ways.split(","))
    assert all(len(own) == 2 for own in found.values())
