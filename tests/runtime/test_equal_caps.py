"""Bucket caps that make the same buckets are run once, and a resumed run keeps to that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.plan import make_plan
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.runtime.equal_caps import as_stored, replayed_gradients, sentences, without_equal
from ddpbench.spec import Case, Devices, PlannedCase, expand, parse_experiment

CATALOG = TableCatalog()
KIB = 1024
SMALL = [36 * KIB] * 10
TEXT = """
    [base]
    workload = "mlp:small"
    [axes]
    world_size = [1, 2]
    bucket_cap_mb = [1, "default", 0.18, 5]
"""


def planned(text: str = TEXT) -> list[PlannedCase]:
    return expand(parse_experiment(text, CATALOG, name="x"), CATALOG, Devices(kind="cpu", gpus=0, cores=4))


def caps(cases: list[PlannedCase]) -> list[tuple[int, object, tuple[object, ...]]]:
    return [
        (entry.case.world_size, entry.case.bucket_cap_mb, entry.stands_for)
        for entry in cases
        if entry.case.strategy == "ddp"
    ]


def test_of_caps_with_the_same_buckets_the_default_is_run_and_stands_for_the_others() -> None:
    found = without_equal(planned(), lambda case: SMALL)
    expected = [("default", (1.0, 5.0)), (0.18, ())]
    assert caps(found) == [(world, *one) for world in (1, 2) for one in expected]
    assert found[-1].case.strategy == "single"
    (line,) = sentences(found)
    assert line == (
        "mlp:small: bucket caps default, 1 MiB and 5 MiB make the same buckets and are run once; caps that make "
        "others: 0.088, 0.044 and 0.022 MiB"
    )


def test_a_models_gradients_are_asked_for_once() -> None:
    asked: list[Case] = []
    without_equal(planned(), lambda case: asked.append(case) or SMALL)  # type: ignore[func-returns-value]
    assert len(asked) == 1


def test_cases_whose_gradients_are_not_known_are_run_as_they_are() -> None:
    cases = planned()
    assert without_equal(cases, lambda case: None) == cases
    unused = planned(f"{TEXT}\n[options.ddp]\nfind_unused_parameters = true")
    assert without_equal(unused, lambda case: SMALL) == unused


def test_caps_with_other_buckets_and_single_caps_cost_nothing() -> None:
    large = [8 * 1024 * KIB] * 10
    different = planned(TEXT.replace("0.18, 5", "9"))
    assert without_equal(different, lambda case: large) == different
    one = planned(TEXT.replace('1, "default", 0.18, 5', "1"))
    assert without_equal(one, lambda case: (_ for _ in ()).throw(AssertionError("asked"))) == one


def test_a_resumed_run_has_the_cases_that_it_was_planned_with(tmp_path: Path) -> None:
    experiment = parse_experiment(TEXT, CATALOG, name="x")
    found = without_equal(planned(), lambda case: SMALL)
    run = RunDir(tmp_path)
    run.plan.write_text(make_plan(experiment, found).dumps(), encoding="utf-8")
    stored = read_plan(run)
    assert list(stored.cases) == found
    assert as_stored(planned(), stored) == found
    assert as_stored(planned(), None) == planned()


def test_a_replays_gradients_come_from_its_profile_in_their_order() -> None:
    """ResNet-50's: the classifier's bias and weight are ready first; 102 MB in all."""
    case = Case(workload="replay:resnet50-v100", strategy="ddp", local_batch=32, compute="replayed")
    sizes = replayed_gradients(case)
    assert sizes is not None
    assert set(sizes[:2]) == {4 * 1000, 4 * 1000 * 2048}
    assert sum(sizes) == 4 * 25_557_032
    shrunk = replayed_gradients(replace(case, shrink=10, dtype="float64"))
    assert shrunk is not None
    assert sum(shrunk) >= 8 * 2_555_703
    assert replayed_gradients(replace(case, workload="mlp:small")) is None
