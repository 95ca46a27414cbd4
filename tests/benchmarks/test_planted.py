"""Planted slowdowns are found: ten comparisons of one case, each measured in turn for a few minutes at most."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddpbench
from tests.benchmarks.conftest import ROOT, Say
from tests.benchmarks.in_turn import RUNS, compare, pairs_in, shown_to_work, times_found
from tests.benchmarks.keeping import keep, refuse_kept
from tests.benchmarks.kept_pairs import Launch

pytestmark = pytest.mark.multiprocess
PLANTED = ROOT / "experiments" / "planted.toml"
OPTION = 'options."planted/train.py".slower_ms'
SETTINGS = ("budget.measured_s=0.05", "base.strategy=single", "base.world_size=1")
SMALL = ("--rounds", "3", *(word for text in SETTINGS for word in ("--set", text)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("share", "minutes"),
    [pytest.param(0.05, 3, id="5 %"), pytest.param(0.03, 8, id="3 %")],
)
def test_a_planted_sleep_is_found(
    share: float, minutes: int, full: bool, say: Say, tmp_path: Path, folder: Path | None
) -> None:
    """Bound: at least 9 of 10 within that time. The sleep is that share of a step, whose time is measured before."""
    base = f"{OPTION}=0.0"
    if not full:
        slower_ms = round(1e3 * share * step_s(tmp_path / "step", "budget.rounds_min=1", *SETTINGS), 2)
        shown_to_work("planted", tmp_path / "run", base, f"{OPTION}={slower_ms}", SMALL)
        return
    slower_ms = round(1e3 * share * step_s(tmp_path / "step"), 2)
    name = f"sleep-{slower_ms}-ms"
    refuse_kept(name, folder)
    say(f"a sleep of {slower_ms} ms a step, {share:.0%} of it:")
    new = f"{OPTION}={slower_ms}"
    found = times_found("planted", tmp_path, minutes, base, new, say, folder, name)
    say(f"a sleep of {share:.0%} of a step, {minutes} min: slower in {found} of {RUNS}")
    assert found >= 9


def step_s(out: Path, *settings: str) -> float:
    """Return the time of a step without a planted slowdown, seconds."""
    cases = ddpbench.load(ddpbench.sweep(PLANTED, out=out, overrides=["budget.rounds_max=5", *settings]))
    return float(cases["step_time_s"].iloc[0])


@pytest.mark.thorough
def test_equal_sides_are_not_told_apart(full: bool, say: Say, tmp_path: Path, folder: Path | None) -> None:
    """Bound: at most 1 of 10 called different, each tested after every round for two minutes."""
    name = "equal-sides"
    refuse_kept(name, folder)
    apart, seen = 0, []
    kept: list[Launch] = []
    for number in range(RUNS if full else 1):
        out = tmp_path / f"run-{number}"
        case, _ = compare(
            "planted",
            out,
            "2 min" if full else "5 s",
            f"{OPTION}=0.0",
            "base.seed=0",
            *(() if full else SMALL),
        )
        kept.append(pairs_in(out))
        keep(kept, name, folder)
        apart += case["verdict"] in ("slower", "faster")
        ratio = case["ratio"]
        assert isinstance(ratio, dict)
        seen.append(f"{ratio['value']:.3f}")
    if full:
        say(f"equal sides: told apart in {apart} of {RUNS} ({', '.join(seen)})")
        assert apart <= 1
