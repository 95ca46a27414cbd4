"""The flags printed for a run's other curves: each line chooses the curve that it names."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.scaling.curves import CaseCurve
from ddpbench.features.allocation.analysis import choice
from ddpbench.features.allocation.analysis.choice import AllocationRequest, choose
from ddpbench.features.allocation.command import _where, add_parser
from ddpbench.records import RunDir
from ddpbench.spec import Case
from tests.analysis.test_claim_verdicts import run_of
from tests.analysis.test_curves import TOLD_APART, batch_of, crossed
from tests.synthetic import case_of

RUN = RunDir(Path("run"))
VIRTUAL = {"fabric", "compute", "dilation", "shrink"}
BUCKETS = re.compile(r" with (default|\S+ MiB) buckets")
LINE = re.compile(r"(.*) \((--.*)\)")


def asked(flags: str) -> AllocationRequest:
    """Return the request of a command line with these flags."""
    commands = argparse.ArgumentParser().add_subparsers()
    add_parser(commands)
    given = commands.choices["allocation"].parse_args(["run", *shlex.split(flags)])
    return AllocationRequest(strategy=given.strategy, workload=given.workload, where=_where(given.where))


def printed(cases: Sequence[CaseRun], request: AllocationRequest) -> tuple[CaseCurve, list[tuple[str, str]]]:
    """Return the chosen curve, and the other curves by name, each with its flags."""
    with patch.object(choice, "MOST_NAMED", 99):
        curve, elsewhere = choose(cases, request, RUN)
    lines = elsewhere.removeprefix("also in this run: ").split("; ") if elsewhere else []
    return curve, [match.groups() for line in lines if (match := LINE.fullmatch(line))]  # type: ignore[misc]


def check(cases: Sequence[Case]) -> None:
    """Check every line that is printed for the first choice, and for each curve that a line chooses."""
    runs = [run_of(case, [0.01] * 3) for case in dict.fromkeys(cases)]
    first, lines = printed(runs, AllocationRequest())
    assert lines, "nothing to check"
    for _, flags in lines:
        chosen, others = printed(runs, asked(flags))
        assert chosen.runs != first.runs, flags
        assert len({shown for _, shown in others}) == len(others)
        assert len({name for name, _ in others}) == len(others)
        for name, shown in others:
            curve, _ = printed(runs, asked(shown))
            words = f"{curve.name}, {curve.setting}"
            if name.endswith(" buckets"):
                assert (curve.panel, curve.variant) == (chosen.panel, chosen.variant)
                assert f"{curve.first.case.bucket_cap_mb}".removesuffix(".0") == name.removesuffix(" buckets")
            else:
                assert BUCKETS.sub("", name) == BUCKETS.sub("", words), shown


AXES = st.lists(
    st.sampled_from([name for name in TOLD_APART if name not in VIRTUAL]),
    min_size=1,
    max_size=3,
    unique=True,
)


@settings(max_examples=20)
@given(AXES)
@example(["workload_options_json", "strategy"])
@example(["options_json", "env_json", "workload"])
def test_each_line_of_flags_chooses_its_own_curve(names: list[str]) -> None:
    check(crossed(names))


def of_options(**options: Any) -> list[Case]:
    """Return cases with each combination of values, of two strategies on two numbers of ranks."""
    cases = []
    for values in product(*options.values()):
        changes = dict(zip(options, values, strict=True))
        for strategy, world in product(("ddp", "zero1"), (2, 4)):
            case = case_of(strategy, world, **{name: json.dumps(value) for name, value in changes.items()})
            case = replace(case, bucket_cap_mb="default" if strategy == "ddp" else None)
            cases += [case.baseline(), case]
    return cases


def test_an_option_and_a_strategy_choose_together() -> None:
    check(of_options(workload_options_json=[{"width": 16}, {"width": 64}]))


def test_an_option_of_the_workload_and_the_strategy_with_one_name_are_two() -> None:
    check(
        of_options(
            workload_options_json=[{"width": 16, "seed": 1}, {"width": 64, "seed": 2}],
            options_json=[{"width": 64}, {"width": 16}],
        )
    )


def test_a_variable_that_one_case_lacks_tells_it_apart() -> None:
    check(of_options(env_json=[{}, {"A": "1"}, {"A": ""}]))


def test_other_bucket_caps_of_a_curve_keep_its_option() -> None:
    cases = of_options(workload_options_json=[{"width": 16}, {"width": 64}])
    check([*cases, *(replace(case, bucket_cap_mb=1.0) for case in cases if case.bucket_cap_mb)])


def test_layouts_on_nodes_are_chosen_apart() -> None:
    nodes = [
        case_of("ddp", 2, launcher="torchrun"),
        case_of("ddp", 4, launcher="torchrun"),
        case_of("ddp", 4, ranks_per_node=2, nodes=2, launcher="torchrun"),
        case_of("ddp", 4, ranks_per_node=1, nodes=4, launcher="torchrun"),
    ]
    check([nodes[0].baseline(), *nodes])


def test_a_bucket_cap_that_was_asked_for_is_in_the_name() -> None:
    cases = [case_of("ddp", 2), case_of("ddp", 2, bucket_cap_mb=1.0)]
    runs = [run_of(case, [0.01] * 3) for case in (cases[0].baseline(), *cases)]
    assert printed(runs, AllocationRequest())[0].name == "DDP with default buckets"
    assert printed(runs, asked("--where bucket_cap_mb=1"))[0].name == "DDP with 1 MiB buckets"


def test_batches_of_a_test_follow_from_the_one_held_fixed() -> None:
    assert batch_of(case_of("ddp", 4, scaling="strong", global_batch=64)) == 16
