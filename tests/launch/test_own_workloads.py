"""The folders in which users' workloads are looked for, and that a run can be resumed with the found files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpbench.errors import ExperimentError, RequestError, WorkloadError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.own_workloads import located, with_located
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.machine.identity import sources_digest
from ddpbench.runtime.trial import inspect_own, summary_of, tried, within_own
from ddpbench.spec import Case, PlannedCase, parse_experiment
from tests.synthetic import case_of

CATALOG = TableCatalog()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the working directory, and an experiment's folder below it."""
    experiments = tmp_path / "experiments"
    (experiments / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path, experiments


def test_beside_the_experiment_comes_first(folders: tuple[Path, Path]) -> None:
    here, experiments = folders
    (here / "train.py").touch()
    assert located("train.py:Mine", experiments) == "train.py:Mine"
    (experiments / "train.py").touch()
    assert located("train.py:Mine", experiments) == "experiments/train.py:Mine"
    (experiments / "mine/train.py").touch()
    assert located("mine/train.py:Mine", experiments) == "experiments/mine/train.py:Mine"


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
    "options.mine/train.py.depth" = [1, 2]
    [[exclude]]
    workload = "mine/train.py:B"
    world_size = 2
    [[exclude]]
    "options.mine/train.py.depth" = 2
    world_size = 2
    [options."mine/train.py"]
    width = 3
    [options.mlp]
    learning_rate = 0.5
"""

CLASSES = "class A: ...\nclass B: ...\n"


def test_every_place_that_names_it_is_rewritten(folders: tuple[Path, Path]) -> None:
    (folders[1] / "mine/train.py").write_text(CLASSES, encoding="utf-8")
    experiment = with_located(parse_experiment(TEXT, CATALOG, name="x"), folders[1])
    found = "experiments/mine/train.py"
    assert experiment.axes["workload"] == [f"{found}:A", f"{found}:B", "mlp"]
    assert experiment.axes[f"options.{found}.depth"] == [1, 2]
    assert experiment.exclude[0]["workload"] == [f"{found}:B"]
    assert experiment.exclude[1][f"options.{found}.depth"] == [2]
    assert experiment.options == {found: {"width": 3}, "mlp": {"learning_rate": 0.5}}


def test_the_plan_has_its_options_and_its_excludes(folders: tuple[Path, Path]) -> None:
    here, experiments = folders
    (experiments / "mine/train.py").write_text(CLASSES, encoding="utf-8")
    (experiments / "x.toml").write_text(TEXT, encoding="utf-8")
    prepared = prepare(SweepRequest(experiment=experiments / "x.toml", out=here / "run"))
    cases = [entry.case for entry in prepared.plan.cases if not entry.added_as_baseline]
    own = [case for case in cases if "train.py" in case.workload]
    assert [(case.workload[-1], case.world_size, case.workload_options) for case in own] == [
        ("A", 1, {"depth": 1, "width": 3}),
        ("A", 1, {"depth": 2, "width": 3}),
        ("A", 2, {"depth": 1, "width": 3}),
        ("B", 1, {"depth": 1, "width": 3}),
        ("B", 1, {"depth": 2, "width": 3}),
    ]
    # The run's copy, which a resume reads, gives the same cases.
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
    before = sources_digest([name])
    path.write_text("second", encoding="utf-8")
    assert sources_digest([name]) != before


def test_a_file_that_is_nowhere_is_refused_with_both_places(folders: tuple[Path, Path]) -> None:
    here, experiments = folders
    with pytest.raises(RequestError) as caught:
        with_located(parse_experiment(TEXT, CATALOG, name="x"), experiments)
    told_of = str(caught.value)
    assert "workload 'mine/train.py:A': there is no file" in told_of
    assert f"{experiments}/mine/train.py or {here}/mine/train.py" in told_of


@pytest.mark.parametrize("name", ["mine/train.py:A", "replay:mine/step.json"])
def test_a_run_that_is_resumed_elsewhere_is_told_where_it_was_started(
    folders: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    here, _ = folders
    run = here / "reports" / "x"
    run.mkdir(parents=True)
    (run / "plan.json").write_text("{}", encoding="utf-8")
    (run / "experiment.toml").write_text(f'[base]\nworkload = "{name}"\n', encoding="utf-8")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    file = name.removeprefix("replay:").removesuffix(":A")
    began = f"{run}/{file} or {elsewhere}/{file}; resume it in the folder in which the run was started"
    with pytest.raises(RequestError) as caught:
        prepare(SweepRequest(experiment=run))
    assert str(caught.value).endswith(began)  # the message does not say where
    (here / "mine").mkdir()
    (here / file).touch()
    with pytest.raises(RequestError) as caught:
        prepare(SweepRequest(experiment=run))
    assert str(caught.value).endswith(f"{began}: cd {here}")


def test_what_was_found_is_told_in_a_line() -> None:
    facts = {"parameters": 1200, "gradient_bytes": 4800, "samples": None, "batch": "float32 [4, 6]"}
    assert summary_of("mine/train.py:A", facts) == (
        "workload mine/train.py:A: 1,200 parameters, 4,800 bytes of gradient; a batch is float32 [4, 6]"
    )


def test_any_keyword_of_an_own_class_may_be_an_axis_and_nothing_else() -> None:
    def axes(name: str) -> str:
        return f'[base]\nstrategy = "ddp"\nworkload = "train.py:Mine"\n[axes]\n"{name}" = [1, "two", [3]]\n'

    assert parse_experiment(axes("options.train.py.width"), CATALOG, name="x").axes == {
        "options.train.py.width": [1, "two", [3]]
    }
    for name in ("options.train.py.a-b", "options.other.py.width", "options.train.py."):
        with pytest.raises(ExperimentError, match="unknown axis"):
            parse_experiment(axes(name), CATALOG, name="x")


def _problems(text: str) -> str:
    start = '[base]\nstrategy = "ddp"\nworkload = "train.py:Mine"\n'
    try:
        parse_experiment(f"{start}{text}", CATALOG, name="x")
    except ExperimentError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("value", ["nan", "inf", "1979-05-27", "[1, nan]"])
def test_a_class_is_given_what_json_holds(value: str) -> None:
    problems = _problems(f'[axes]\n"options.train.py.width" = [{value}]')
    assert "must be a text, a finite number" in problems
    assert "width" in problems


def test_values_that_a_class_tells_apart_are_several() -> None:
    assert not _problems('[axes]\n"options.train.py.width" = [false, 0, 1, true, 1.5, "1", {a = 1}]')
    assert "is given twice" in _problems('[axes]\n"options.train.py.width" = [1, 1]')


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ('"options.train.py.width" = 2', ""),
        ('"options.train.py.depth" = 3', ""),
        ('"options.train.py.widht" = 2', "exclude[0].options.train.py.widht: is not set by any case"),
        ('"options.train.py.width" = "2"', "no case has the value '2'"),
        ('"options.train.py.depth" = 4', "no case has the value 4"),
    ],
)
def test_an_exclude_that_no_case_has_is_told(exclude: str, message: str) -> None:
    text = '[axes]\n"options.train.py.width" = [1, 2]\n[options."train.py"]\ndepth = 3\n[[exclude]]\n'
    found = _problems(text + exclude)
    assert message in found
    assert bool(message) is bool(found)


def test_two_names_of_one_file_are_refused(folders: tuple[Path, Path]) -> None:
    (folders[1] / "train.py").write_text(CLASSES, encoding="utf-8")
    text = """
        [base]
        strategy = "ddp"
        [axes]
        workload = ["train.py:A", "./train.py:B"]
        "options.train.py.width" = [16, 32]
        "options../train.py.width" = [1, 2]
    """
    with pytest.raises(RequestError, match="name the same file: use only one of these names"):
        with_located(parse_experiment(text, CATALOG, name="x"), folders[1])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("workload", ["train.py:A", "./train.py:A"]),
        ("workload", ["train.py:A", "{folder}/train.py:A"]),
        ("workload", ["mlp", "mlp:small"]),
        ("workload", ["replay:step.json", "replay:../experiments/step.json"]),
        ("strategy", ["ddp", "train.py:A", "../experiments/train.py:A"]),
        ("algorithm", ["ring", "train.py:A", "./train.py:A"]),
    ],
)
def test_one_class_under_two_names_is_refused_before_a_run_begins(
    folders: tuple[Path, Path], kind: str, names: list[str]
) -> None:
    text = f"{CLASSES}from ddpbench.strategies import NoOptions, Strategy\nclass A(Strategy):\n  options = NoOptions\n"
    (folders[1] / "train.py").write_text(text + "  build = None\n", encoding="utf-8")
    profile = Path(__file__).parents[2] / "ddpbench/profiles/gpt-nano-cpu.json"
    (folders[1] / "step.json").write_bytes(profile.read_bytes())
    names = [name.format(folder=folders[1]) for name in names]
    start = "" if kind == "strategy" else '[base]\nstrategy = "ddp"\n'
    found = parse_experiment(f"{start}[axes]\n{kind} = {names}", TableCatalog(folders[1]), name="x")
    said = f"axes.{kind}: {names[-2]!r} and {names[-1]!r} are the same {kind}: leave one out"
    with pytest.raises(RequestError, match=re.escape(said)):
        with_located(found, folders[1])


class _Inspecting:
    """A server that finds the facts of a class with its options."""

    def probe(self, path: Path, case: dict[str, Any], *_: Any, largest: Case) -> int:
        options = json.loads(case["workload_options_json"])
        found = {
            "sparse": options.get("sparse", False),
            "made_s": 1.0,
            "step_s": options.get("width"),
            "local_batch": 8,
        }
        broken = {"problem": "train.py:Mine: cannot be built"}
        path.write_text(json.dumps(broken if options.get("broken") else found), encoding="utf-8")
        return 0


def _own(**options: Any) -> Case:
    return case_of(workload="train.py:Mine", workload_options_json=json.dumps(options, sort_keys=True))


def test_a_class_is_what_its_options_make_it(tmp_path: Path) -> None:
    cases = [_own(width=1), _own(width=2, sparse=True)]
    server: Any = _Inspecting()
    found = inspect_own(server, cases, tmp_path)
    assert [tried(found)[case.workload_with_options].step_s for case in cases] == [1, 2]
    reasons = [
        entry.skip_reason
        for entry in within_own(
            [PlannedCase(case=replace(case, strategy="fsdp", algorithm="fsdp")) for case in cases], found
        )
    ]
    assert reasons[0] is None
    assert "sparse" in str(reasons[1])
    with pytest.raises(WorkloadError) as caught:
        inspect_own(server, [_own(broken=1), _own(broken=2)], tmp_path)
    assert str(caught.value) == "train.py:Mine: cannot be built", (
        "one sentence, not one for each of its options"
    )
    with pytest.raises(WorkloadError) as caught:
        inspect_own(server, [_own(width=1), _own(broken=1)], tmp_path)
    assert str(caught.value) == "train.py:Mine: cannot be built (with broken=1)"
