"""Where the files of a user's own workloads are looked for, and that a run can be resumed with what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.errors import RequestError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.own_workloads import located, with_located
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.machine.identity import workloads_digest
from ddpbench.machine.trial import told
from ddpbench.spec import parse_experiment

CATALOG = TableCatalog()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The working directory, and an experiment's own folder below it."""
    beside = tmp_path / "experiments"
    (beside / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path, beside


def test_beside_the_experiment_comes_first(folders: tuple[Path, Path]) -> None:
    here, beside = folders
    (here / "train.py").touch()
    assert located("train.py:Mine", beside) == "train.py:Mine"
    (beside / "train.py").touch()
    assert located("train.py:Mine", beside) == "experiments/train.py:Mine"
    (beside / "mine/train.py").touch()
    assert located("mine/train.py:Mine", beside) == "experiments/mine/train.py:Mine"


def test_what_lies_elsewhere_is_named_whole(
    folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "train.py").touch()
    assert located("train.py:Mine", other) == f"{other}/train.py:Mine"
    assert located(f"{other}/train.py:Mine", folders[1]) == f"{other}/train.py:Mine"


@pytest.mark.parametrize("name", ["gpt:nano", "package.module:Mine", "gone.py:Mine"])
def test_other_names_stay_as_they_are(folders: tuple[Path, Path], name: str) -> None:
    assert located(name, folders[1]) == name


TEXT = """
    [base]
    strategy = "ddp"
    [axes]
    workload = ["mine/train.py:A", "mine/train.py:B", "mlp"]
    world_size = [1, 2]
    [[exclude]]
    workload = "mine/train.py:B"
    world_size = 2
    [options."mine/train.py"]
    width = 3
    [options.mlp]
    learning_rate = 0.5
"""


def test_every_place_that_names_it_is_rewritten(folders: tuple[Path, Path]) -> None:
    (folders[1] / "mine/train.py").touch()
    experiment = with_located(parse_experiment(TEXT, CATALOG, name="x"), folders[1])
    found = "experiments/mine/train.py"
    assert experiment.axes["workload"] == [f"{found}:A", f"{found}:B", "mlp"]
    assert experiment.exclude[0]["workload"] == [f"{found}:B"]
    assert experiment.options == {found: {"width": 3}, "mlp": {"learning_rate": 0.5}}


def test_the_plan_has_its_options_and_its_excludes(folders: tuple[Path, Path]) -> None:
    here, beside = folders
    (beside / "mine/train.py").write_text("", encoding="utf-8")
    (beside / "x.toml").write_text(TEXT, encoding="utf-8")
    prepared = prepare(SweepRequest(experiment=beside / "x.toml", out=here / "run"))
    cases = [entry.case for entry in prepared.plan.cases if not entry.added_as_baseline]
    own = [case for case in cases if "train.py" in case.workload]
    assert [(case.workload[-1], case.world_size) for case in own] == [("A", 1), ("A", 2), ("B", 1)]
    assert all(case.workload_options == {"width": 3} for case in own)
    # From the run's own copy, as a resume reads it, the same cases come.
    (here / "run").mkdir()
    (here / "run/experiment.toml").write_text(prepared.experiment.to_toml(), encoding="utf-8")
    again = prepare(SweepRequest(experiment=here / "run/experiment.toml", out=here / "other"))
    assert [entry.case.case_id for entry in again.plan.cases] == [
        entry.case.case_id for entry in prepared.plan.cases
    ]


def test_the_identity_follows_the_file_that_was_found(folders: tuple[Path, Path]) -> None:
    path = folders[1] / "train.py"
    path.write_text("first", encoding="utf-8")
    name = located("train.py:Mine", folders[1])
    before = workloads_digest([name])
    path.write_text("second", encoding="utf-8")
    assert workloads_digest([name]) != before


def test_a_file_that_is_nowhere_is_refused_with_both_places(folders: tuple[Path, Path]) -> None:
    here, beside = folders
    with pytest.raises(RequestError) as caught:
        with_located(parse_experiment(TEXT, CATALOG, name="x"), beside)
    told_of = str(caught.value)
    assert "workload 'mine/train.py:A': there is no file" in told_of
    assert f"{beside}/mine/train.py or {here}/mine/train.py" in told_of


def test_what_was_found_is_told_in_a_line() -> None:
    facts = {"parameters": 1200, "gradient_bytes": 4800, "samples": None, "batch": "float32 [4, 6]"}
    assert told("mine/train.py:A", facts) == (
        "workload mine/train.py:A: 1,200 parameters, 4,800 bytes of gradient; a batch is float32 [4, 6]"
    )
