"""Names of curves: no two of a run are alike."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpbench.analysis.scaling.curves import curves_of
from ddpbench.spec import Case
from ddpbench.spec.grouping import FACETS
from tests.analysis.test_claim_verdicts import run_of
from tests.spec.test_grouping import ALSO, AXES, FOLLOWS
from tests.synthetic import case_of

TOLD_APART = [name for name, facet in FACETS.items() if facet.role in ("panel", "variant")]
OPTION = ("options_json", "workload_options_json", "env_json")


def crossed(names: list[str], *, ranks: tuple[int, ...] = (2, 4)) -> list[Case]:
    """Return the cases of a run with these fields as axes, next to numbers of ranks, and their base cases."""
    cases: dict[Case, None] = {}
    for values in product((False, True), repeat=len(names)):
        changes: dict[str, Any] = {}
        for name in names:
            changes |= FOLLOWS.get(name, {})
        for name, other in zip(names, values, strict=True):
            if other:
                changes |= {name: AXES[name], **ALSO.get(name, {})}
            elif name in OPTION:
                changes[name] = json.dumps(dict.fromkeys(json.loads(AXES[name]), "none"))
        if changes.get("data") == "memory":
            changes["loader_workers"] = 0  # as in a run: nothing is loaded
        for world in ranks:
            case = case_of(**{"strategy": "ddp", "world_size": world, "global_batch": 128} | changes)
            strong = case.scaling == "strong"
            case = replace(case, **{"local_batch" if strong else "global_batch": batch_of(case)})
            cases |= {case.baseline(): None, case: None}
    return list(cases)


def batch_of(case: Case) -> int:
    """Return the batch that follows from the one held fixed."""
    if case.scaling == "strong":
        return case.global_batch // case.world_size
    return case.local_batch * case.world_size


AXES_OF_A_RUN = st.lists(st.sampled_from(TOLD_APART), min_size=1, max_size=3, unique=True)


@given(AXES_OF_A_RUN)
@example(["workload_options_json"])
@example(["options_json", "workload_options_json", "env_json"])
@example(["threads_per_rank", "seed", "evaluation"])
def test_no_two_curves_have_the_same_name_and_setting(names: list[str]) -> None:
    curves = curves_of([run_of(case, [0.01] * 3) for case in crossed(names)])
    assert len(curves) > 1
    named = [(curve.name, curve.setting) for curve in curves]
    assert len(set(named)) == len(named)


def test_a_curve_of_three_variants_is_named_apart_from_both_others() -> None:
    """Named apart from the first alone, the third would be `x=2`, and the first `y=1`, which is true of both."""
    options = [{"x": 1, "y": 1}, {"x": 1, "y": 2}, {"x": 2, "y": 1}]
    cases = [case_of("ddp", n, options_json=json.dumps(one)) for one in options for n in (2, 4)]
    curves = curves_of([run_of(case, [0.01] * 3) for case in (case_of("single", 1), *cases)])
    assert [curve.name for curve in curves] == ["DDP (x=1, y=1)", "DDP (x=1, y=2)", "DDP (x=2, y=1)"]


def test_where_workloads_tell_curves_apart_their_settings_stay_short() -> None:
    cases = [case_of(name, n, workload=w) for w in ("mlp", "cnn") for name, n in (("single", 1), ("ddp", 2))]
    curves = curves_of([run_of(case, [0.01] * 3) for case in cases])
    assert [curve.setting for curve in curves] == [
        f"{workload}, weak scaling with a local batch of 8" for workload in ("mlp", "cnn")
    ]
