"""The type that a case casts to: float32 for built-in workloads, none for users' classes unless it is set."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.own_workloads import cast_notes
from ddpbench.naming import Namer
from ddpbench.spec import Devices, Experiment, PlannedCase, expand, parse_experiment
from ddpbench.spec.grouping import number_words

CATALOG = TableCatalog()
OWN = "case.py:Measured"


@pytest.fixture(autouse=True)
def _class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "case.py").write_text(
        "class Measured:\n    model = dataset = loss = print\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)


def experiment(workloads: str, dtype: str = "") -> Experiment:
    text = f"""
        [base]
        strategy = "ddp"
        world_size = 2
        local_batch = 8
        {dtype}
        [axes]
        workload = {workloads}
    """
    return parse_experiment(text, CATALOG, name="run")


def planned(workloads: str, dtype: str = "") -> dict[tuple[str, str], PlannedCase]:
    found = expand(experiment(workloads, dtype), CATALOG, Devices(kind="cpu", gpus=0, cores=2))
    return {(entry.case.workload, entry.case.strategy): entry for entry in found}


def test_only_a_users_class_keeps_its_types() -> None:
    found = planned(f'["{OWN}", "gpt:nano"]')
    assert {key: entry.case.dtype for key, entry in found.items()} == {
        (OWN, "ddp"): "own",
        (OWN, "single"): "own",
        ("gpt:nano", "ddp"): "float32",
        ("gpt:nano", "single"): "float32",
    }
    set_to = planned(f'["{OWN}"]', 'dtype = "bfloat16"')
    assert set_to[OWN, "ddp"].case.dtype == "bfloat16"


def test_ids_of_cases_that_cast_are_those_of_earlier_runs() -> None:
    """Ids from a version that cast every class to float32."""
    cast = planned(f'["{OWN}", "gpt:nano"]', 'dtype = "float32"')
    assert cast[OWN, "ddp"].case.case_id == "ddp-w2-bdefault-5f05b02f"
    assert cast[OWN, "single"].case.case_id == "single-w1-4df4a28b"
    assert planned('["gpt:nano"]')["gpt:nano", "ddp"].case == cast["gpt:nano", "ddp"].case
    assert planned(f'["{OWN}"]')[OWN, "ddp"].case.case_id != "ddp-w2-bdefault-5f05b02f"


def test_an_experiment_without_a_class_of_ones_own_is_written_as_it_was() -> None:
    """Its digest decides whether a run can be resumed."""
    assert tomllib.loads(experiment('["gpt:nano"]').to_toml())["base"]["dtype"] == "float32"
    own = experiment(f'["{OWN}", "gpt:nano"]')
    assert parse_experiment(own.to_toml(), CATALOG, name="again").base.dtype == "default"


def test_a_cast_of_a_class_is_told_before_anything_is_started() -> None:
    cases = planned(f'["{OWN}", "gpt:nano"]', 'dtype = "float32"').values()
    assert cast_notes(cases) == [
        f'dtype = "float32" casts the parameters and batches of {OWN}: leave dtype out to keep their types'
    ]
    assert cast_notes(planned(f'["{OWN}", "gpt:nano"]').values()) == []


def test_types_in_words() -> None:
    case = planned(f'["{OWN}"]')[OWN, "ddp"].case
    tried = {"context": {"own_workloads": {OWN: {"types": ["bfloat16", "float32"], "autocast": "bf16"}}}}
    assert number_words(case, tried) == "bfloat16 and float32 with its own bf16 autocast"
    assert number_words(case, {}) == "the class's own types"
    cast = planned(f'["{OWN}"]', 'dtype = "float64"')[OWN, "ddp"].case
    assert [Namer([case, cast]).full(one) for one in (case, cast)] == [
        "ddp · 2 ranks · default buckets · the class's own types",
        "ddp · 2 ranks · default buckets · float64",
    ]
