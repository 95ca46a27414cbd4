"""Comparisons of inputs and of precisions are one family over all groups: more groups make each less certain."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ddpbench.analysis.inputs import input_groups
from ddpbench.analysis.precisions import precision_groups
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.spec import Case
from tests.synthetic import case_of

EVEN = (0.98, 1.01, 1.0, 1.02, 0.99, 1.0)
LONGER, BEYOND = 1.017, 1.0375
"""Ratios of step times that six rounds of such scatter show to be longer, or longer by the margin, at
5 % and not at 2.5 %.
"""


def run(case: Case, time_s: float, factors: tuple[float, ...] = (1.0,) * 6) -> Any:
    timings = [
        Timing(round=number, time_s=time_s * factor * 10, steps=10, samples=80, session="s")
        for number, factor in enumerate(factors)
    ]
    return SimpleNamespace(
        case=case, case_id=case.case_id, status="ok", timings=timings, parts=None, claimed={}
    )


def verdicts_of_inputs(runs: list[Any]) -> list[str]:
    return [member.verdict for group in input_groups(runs) for member in group.loaded]


def verdicts_of_precisions(runs: list[Any]) -> list[str]:
    return [judged.verdict for group in precision_groups(runs) for _, judged in group.others]


def test_inputs_of_all_groups_share_the_error() -> None:
    ddp, other = case_of("ddp", 2), case_of("ddp", 2, workload="mlp:small")
    one = [run(replace(ddp, data="memory"), 1.0), run(ddp, BEYOND, EVEN)]
    two = [run(replace(other, data="memory"), 1.0), run(other, 1.0, EVEN)]
    assert verdicts_of_inputs(one) == ["input-bound"]
    assert verdicts_of_inputs([*one, *two])[0] == "unresolved"


def test_precisions_of_all_groups_share_the_error() -> None:
    ddp, other = case_of("ddp", 2), case_of("ddp", 2, workload="mlp:small")
    one = [run(ddp, 1.0), run(replace(ddp, precision="bf16"), LONGER, EVEN)]
    two = [run(other, 1.0), run(replace(other, precision="bf16"), 1.0, EVEN)]
    assert verdicts_of_precisions(one) == ["slower"]
    assert verdicts_of_precisions([*one, *two])[0] == "unresolved"
