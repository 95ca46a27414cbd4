"""A sweep's progress: how many launches have ended, and how long the rest takes from then on."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ddpbench.cli.progress import BarListener, LineListener
from ddpbench.launch.outlook import Outlook
from ddpbench.naming import Namer
from ddpbench.spec import Budget, Case, PlannedCase

ENTRY = PlannedCase(case=Case(workload="mlp:small", strategy="single"))


@pytest.mark.parametrize(
    ("done", "left_s", "took_s", "said"),
    [
        (0, 60.0, 5.0, "[1/6, 55 s left] "),
        (0, 60.0, 20.0, "[1/6, 50 s left] "),  # it took longer than expected; the others keep their share
        (4, 60.0, 200.0, "[5/6, 30 s left] "),
        (5, 191.0, 10.0, "[6/6] "),  # the time left was that of this launch itself
    ],
)
def test_the_time_left_is_counted_from_the_end_of_a_launch(
    done: int, left_s: float, took_s: float, said: str
) -> None:
    now = 1000.0
    file = io.StringIO()
    listener = LineListener(Console(file=file, width=200), clock=lambda: now)
    listener.launch_started(ENTRY, "round 1", done, 6, left_s)
    now += took_s
    outcome: Any = SimpleNamespace(status="ok", error="")
    listener.launch_ended(ENTRY, outcome, 12.0)
    assert file.getvalue().startswith(f"{said}round 1"), file.getvalue()


@pytest.mark.parametrize("kind", [LineListener, BarListener])
def test_the_time_left_includes_the_report(kind: type[LineListener]) -> None:
    file = io.StringIO()
    listener = kind(Console(file=file, width=200), clock=lambda: 1000.0, after_s=9.0)
    plan: Any = SimpleNamespace(
        experiment=SimpleNamespace(budget=Budget()), cases=(), names=Namer([ENTRY.case])
    )
    run: Any = None
    listener.planned(plan, run, 0, 60.0)
    listener.launch_started(ENTRY, "round 1", 0, 2, 60.0)
    assert "about 69 s to go" in file.getvalue()
    assert listener._left() == "69 s left"


AFTER_SIX = Outlook(
    at_end=0.0331,
    end_rounds=14,
    total_s=240.0,
    ends_by_time=True,
    target=0.03,
    target_s=411.0,
    reaches_target=False,
)


@pytest.mark.parametrize(
    ("changes", "stop_reason", "said"),
    [
        ({}, "", "±5.0 %, about ±3.4 % at the end of 4 min; ±3 % would take about 7 min; another round"),
        ({}, "budget", "±5.0 %; ±3 % would take about 7 min; stopping: budget"),
        ({}, "target reached", "±5.0 %; stopping: target reached"),
        (
            {"ends_by_time": False},
            "",
            "±5.0 %, about ±3.4 % at the end of 14 rounds; ±3 % would take about 7 min; another round",
        ),
        (
            {"target_s": None},
            "",
            "±5.0 %, about ±3.4 % at the end of 4 min; ±3 % would take over 1,000 rounds; another round",
        ),
        (
            {"target_s": 85.0, "reaches_target": True},
            "",
            "±5.0 %; ±3 % expected at about 90 s; another round",
        ),
    ],
)
def test_the_end_of_a_round_says_what_the_budget_will_resolve(
    changes: dict[str, Any], stop_reason: str, said: str
) -> None:
    file = io.StringIO()
    listener = LineListener(Console(file=file, width=200))
    listener.round_ended(5, {"a": 0.05, "b": None}, stop_reason, replace(AFTER_SIX, **changes))
    assert file.getvalue() == f"after round 6: widest interval {said}\n"


def test_nothing_is_foreseen_without_intervals() -> None:
    file = io.StringIO()
    LineListener(Console(file=file, width=200)).round_ended(4, {"a": None}, "")
    assert file.getvalue() == "after round 5: no intervals yet; another round\n"
