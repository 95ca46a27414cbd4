"""Calls of ours in a timed step: after a model's pass through the caches each Python function takes a microsecond."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ddpbench
from ddpbench.spec import Case
from ddpbench.worker.place import JobPlace
from tests.benchmarks.pairing import Harness

PACKAGE = str(Path(ddpbench.__file__).parent)
MODELS = str(Path(PACKAGE) / "workloads")
STEPS = 5
MOST = 20
"""Most functions that a step may call, apart from the workload's; they are counted, not timed. It calls 19."""


def harness() -> Harness:
    case = Case(
        workload="mlp:small",
        strategy="single",
        algorithm="none",
        schedule="none",
        world_size=1,
        bucket_cap_mb=None,
        local_batch=4,
        global_batch=4,
    )
    place = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
    return Harness(case, place)


def calls_of(steps: int, made: Harness) -> Counter[str]:
    """Return the functions of the package that `steps` steps call, and how often."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        where = frame.f_code.co_filename
        if event == "call" and where.startswith(PACKAGE) and not where.startswith(MODELS):
            calls[frame.f_code.co_qualname] += 1

    made.loop.step()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for _ in range(steps):
            made.loop.step()
    finally:
        sys.setprofile(before)
    return calls


def test_a_timed_step_calls_few_functions_of_ours() -> None:
    calls = calls_of(STEPS, harness())
    assert calls["StepLoop.step"] == STEPS
    assert sum(calls.values()) <= MOST * STEPS, calls


def test_a_span_that_is_not_noted_costs_no_python_function(monkeypatch: pytest.MonkeyPatch) -> None:
    made = harness()
    fewer = sum(calls_of(STEPS, made).values())

    class Slow:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    Slow.__enter__.__code__ = Slow.__enter__.__code__.replace(co_filename=f"{PACKAGE}/planted.py")
    Slow.__exit__.__code__ = Slow.__exit__.__code__.replace(co_filename=f"{PACKAGE}/planted.py")
    monkeypatch.setattr("ddpbench.measure.recorder._NOTHING", Slow())
    more = sum(calls_of(STEPS, made).values())
    assert more >= fewer + 2 * 3 * STEPS  # data, forward and optimizer at least
    assert more > MOST * STEPS
