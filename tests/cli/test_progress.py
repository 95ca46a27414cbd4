"""A sweep's progress: how many launches have ended, and how long the rest takes from then on."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ddpbench.cli.progress import BarListener, LineListener
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
