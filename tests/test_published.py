"""The arithmetic that compares emulated runs with published figures, on synthetic runs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

PUBLISHED: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "experiments/published.py"))


def test_what_scaling_adds_is_held_against_the_table() -> None:
    rows = [
        ("ddp", model, n, step * 1.03 if n > 1 else step)
        for model, steps in PUBLISHED["V100_STEP_S"].items()
        for n, step in zip(PUBLISHED["WORLDS"], [steps[0]] * 5, strict=True)
    ]
    cases = pd.DataFrame(rows, columns=["strategy", "workload", "world_size", "step_time_s"])
    found = PUBLISHED["added_by_scaling"](cases)
    assert len(found) == 4 * 4
    first = found[(found["workload"] == "replay:resnet50-v100") & (found["world_size"] == 2)].iloc[0]
    assert first["published_s"] == pytest.approx(0.003)
    assert first["emulated_s"] == pytest.approx(0.003)
    assert first["error"] == pytest.approx(0, abs=1e-9)
    assert PUBLISHED["tell_scaling"](found)
    assert not PUBLISHED["tell_scaling"](found.assign(emulated_s=0.0, error=1.0))


def test_a_bandwidth_is_found_for_one_model_and_used_for_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = [(4.0, 0.2), (8.0, 0.3), (16.0, 0.4), (32.0, 0.1)]
    assert PUBLISHED["rate_of"](points, 0.35) == pytest.approx(8 * 2**0.5)  # the slower of two
    assert PUBLISHED["rate_of"](points, 0.22) == pytest.approx(4 * 2**0.2)
    assert PUBLISHED["rate_of"](points, 0.5) == pytest.approx(16, rel=0.01)  # as near as it comes
    assert PUBLISHED["rate_of"](points, 0.0) == 32
    assert PUBLISHED["gain_at"](points, 8 * 2**0.5) == pytest.approx(0.35)
    resnet = [(4.0, 0.2), (16.0, 0.4)]
    assert PUBLISHED["tell_overlap"](
        {PUBLISHED["RESNET"]: resnet, PUBLISHED["BERT"]: [(4.0, 0.18), (16.0, 0.36)]}
    )
    assert "published 35.2%: -1.0 points" in capsys.readouterr().out
    assert not PUBLISHED["tell_overlap"](
        {PUBLISHED["RESNET"]: resnet, PUBLISHED["BERT"]: [(4.0, 0.0), (16.0, 0.1)]}
    )
