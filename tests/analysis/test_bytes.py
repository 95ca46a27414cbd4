"""Bytes of a gradient over links, by compression and type; None where something else is sent."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.analysis.network import bytes_to_aggregate
from ddpbench.spec import Case
from tests.synthetic import case_of


@pytest.mark.parametrize(
    ("strategy", "options", "changes", "expected"),
    [
        ("ddp", {}, {}, 800.0),
        ("ddp", {"compression": "none"}, {"dtype": "float64"}, 800.0),
        ("ddp", {"compression": "fp16"}, {}, 400.0),
        ("ddp", {"compression": "bf16"}, {"dtype": "float64"}, 200.0),
        ("ddp", {"compression": "bf16"}, {"dtype": "bfloat16"}, 800.0),
        ("ddp", {"compression": "powersgd"}, {}, None),
        ("post_local_sgd", {}, {}, None),
    ],
)
def test_bytes_that_are_aggregated(
    strategy: str, options: dict[str, Any], changes: dict[str, Any], expected: float | None
) -> None:
    case = case_of(strategy, 2, options_json=json.dumps(options), **changes)
    assert bytes_to_aggregate(_run(case)) == expected
    assert bytes_to_aggregate(_run(case, own_step=True)) is None


def _run(case: Case, *, own_step: bool = False) -> Any:
    """Return a stand-in with the fields that the rule reads."""
    return SimpleNamespace(case=case, good=[SimpleNamespace(gradient_bytes=800, own_step=own_step)])
