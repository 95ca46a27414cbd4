"""Strategies from users' files, as planning and reports see them: nothing is launched here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.analysis import summarize
from ddpbench.errors import DdpbenchError, ExperimentError, IdentityError, StrategyError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.own_workloads import located_among, with_located
from ddpbench.launch.verify import name_of, owned_overrides, verification_cases
from ddpbench.machine.identity import sources_digest, sources_named
from ddpbench.naming import Namer
from ddpbench.pytest_plugin import _with_files, _within
from ddpbench.records import RunDir
from ddpbench.records.plan import planned_json, read_plan
from ddpbench.report import write_report
from ddpbench.report.rows import rows_of
from ddpbench.spec import Case, Devices, Experiment, PlannedCase, expand, parse_experiment
from ddpbench.spec.overrides import Owner, option_models, with_whole_options
from ddpbench.strategies import load_strategy
from ddpbench.strategies.traits import told_apart, traits_of
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.training import Training
from tests.synthetic import write_run

SOUND = """
    from pydantic import BaseModel

    from ddpbench.strategies import Job, NoOptions, Replica, Strategy


    class Options(BaseModel, extra="forbid", frozen=True):
        ratio: float = 0.5


    class Sound(Strategy[Options]):
        options = Options
        algorithm = "mine"

        def build(self, job, options):
            raise NotImplementedError
"""
DEVICES = Devices(kind="cpu", gpus=0, cores=4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set the working directory, the experiment's folder; modules imported from it are forgotten afterwards."""
    before = {*sys.modules}
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(name: str, text: str = SOUND) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def experiment(text: str, *overrides: str, folder: Path | None = None) -> Experiment:
    folder = folder or Path.cwd()
    found = parse_experiment(textwrap.dedent(text), TableCatalog(folder), name="own", overrides=overrides)
    return with_located(found, folder)


def cases_of(text: str, *overrides: str, folder: Path | None = None) -> list[Case]:
    planned = expand(experiment(text, *overrides, folder=folder), TableCatalog(folder or Path.cwd()), DEVICES)
    return [one.case for one in planned if not one.added_as_baseline]


def of(strategy: str) -> str:
    return f'[base]\nworld_size = 2\nworkload = "mlp"\nstrategy = "{strategy}"\n'


def test_it_is_a_case_with_its_own_traits_and_options() -> None:
    write(
        "mine.py", SOUND.replace('"mine"', '"mine"\n        display = "top-k"\n        note = "Approximate."')
    )
    (case,) = cases_of(of("mine.py:Sound"))
    assert case.strategy == "mine.py:Sound"
    assert case.case_id.startswith("Sound-w2-")
    assert case.label == "Sound · 2 ranks"
    assert (case.algorithm, case.options) == ("mine", {"ratio": 0.5})
    traits = traits_of(case)
    assert (traits.display, traits.spoken, traits.note) == ("top-k", "top-k", "Approximate.")
    assert (traits.promise, traits.exact, traits.role) == ("gradients", True, "")
    assert case.baseline().strategy_traits == ""


def test_its_options_are_axes_and_may_be_named_alone() -> None:
    write("mine.py")
    axis = of("mine.py:Sound") + '[axes]\n"options.mine.py:Sound.ratio" = [0.1, 0.2]\n'
    assert [case.options["ratio"] for case in cases_of(axis)] == [0.1, 0.2]
    (case,) = cases_of(of("mine.py:Sound"), "ratio=0.3")
    assert case.options["ratio"] == 0.3
    for named in ('"mine.py:Sound"', "mine.py:Sound"):
        (case,) = cases_of(of("mine.py:Sound"), f"options.{named}.ratio=0.4")
        assert case.options["ratio"] == 0.4
    models = option_models([Owner("strategy", "mine.py:Sound")], TableCatalog())
    assert with_whole_options(["ratio=1"], models, []) == ['options."mine.py:Sound".ratio=1']


def test_it_is_looked_for_beside_the_experiment_wherever_it_is_named() -> None:
    write("experiments/mine.py")
    text = """
        [base]
        world_size = 2
        workload = "mlp"
        [axes]
        strategy = ["ddp", "mine.py:Sound"]
        [options."mine.py:Sound"]
        ratio = 0.25
        [[exclude]]
        strategy = "mine.py:Sound"
        seed = 3
        [[claims]]
        says = "It is faster."
        faster = { strategy = "mine.py:Sound" }
        than = { strategy = "ddp" }
        [budget]
        rounds_min = 5
        rounds_max = 5
    """
    found = experiment(text, folder=Path("experiments"))
    name = "experiments/mine.py:Sound"
    assert found.axes["strategy"] == ["ddp", name]
    assert found.options == {name: {"ratio": 0.25}}
    assert found.exclude[0]["strategy"] == [name]
    assert found.claims[0].faster == {"strategy": [name]}
    again = parse_experiment(found.to_toml(), TableCatalog(), name="own")
    assert [one.case.strategy for one in expand(again, TableCatalog(), DEVICES)][:2] == ["ddp", name]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gone.py:Sound", "", "there is no file"),
        ("mine.py", "", "does not name a class: write 'mine.py:Class'"),
        ("mine.py:Soun", SOUND, "mine.py has no class Soun; did you mean 'Sound'?"),
        ("mine.py:Options", SOUND, "class Options in mine.py is not a strategy: derive it from"),
        ("mine.py:Sound", "x = 1\ndef broken(:\n", "mine.py, line 2: invalid syntax"),
        (
            "mine.py:Sound",
            "import no_such_module\nSound = 1\n",
            "No module named 'no_such_module' (mine.py:1)",
        ),
        ("mine.py:Sound", "import sys\nSound = 1\nsys.exit(2)\n", "it ends the process"),
        (
            "mine.py:Sound",
            "import os\nSound = 1\nos._exit(4)\n",
            "mine.py cannot be imported: it ends the process",
        ),
        (
            "mine.py:Sound",
            f"import os\n{textwrap.dedent(SOUND)}\n    def __init__(self): os._exit(4)\n",
            "class Sound in mine.py cannot be made: SystemExit: 4 (mine.py:",
        ),
        ("mine.py:Sound", "Sound = 1\n1 / 0\n", "ZeroDivisionError: division by zero (mine.py:2)"),
        ("mine.py:Sound", SOUND.replace("def build", "def bild"), "class Sound in mine.py lacks build()"),
        ("mine.py:Sound", SOUND.replace("options = Options", ""), "class Sound in mine.py lacks options"),
        ("mine.py:Sound", SOUND.replace("options = Options", "options = dict"), "options = <class 'dict'>"),
        ("mine.py:Sound", SOUND.replace('"mine"', "7"), "algorithm = 7"),
        (
            "mine.py:Sound",
            f"{textwrap.dedent(SOUND)}\n    def __init__(self, x): ...\n",
            "class Sound in mine.py cannot be made: TypeError: ",
        ),
        ("mine.py:Sound", SOUND.replace('"mine"', '"mine"\n        launcher = "ray"'), "launcher = 'ray'"),
        (
            "mine.py:Sound",
            SOUND.replace('"mine"', '"mine"\n        display = "<b>top</b>"'),
            "class Sound: display = '<b>top</b>'",
        ),
        ("mine.py:Sound", SOUND.replace('"mine"', '"mine"\n        marker = "$x$"'), "marker = '$x$'"),
        ("mine.py:Sound", SOUND.replace('"mine"', '"mine"\n        variants = 5'), "variants = 5"),
        ("mine.py:Sound", SOUND.replace('"mine"', '"mine"\n        exact_steps = -1'), "exact_steps = -1"),
        (
            "mine.py:Sound",
            SOUND.replace('"mine"', '"mine"\n        unit_roundoff = 0.2'),
            "unit_roundoff = 0.2: input should be less than or equal to 0.125",
        ),
        (
            "mine.py:Sound",
            SOUND.replace('"mine"', '"mine"\n        unit_roundoff = __import__("torch").tensor(0.1)'),
            "class Sound in mine.py: unit_roundoff = tensor(0.1000): ",
        ),
        ("mine.py:Sound", SOUND.replace('"mine"', '"mine"\n        note = "a" * 1001'), "note = 'aaa"),
    ],
)
def test_what_cannot_be_used_is_one_problem_in_a_sentence(name: str, text: str, said: str) -> None:
    if text:
        write("mine.py", text)
    for plan in (lambda: cases_of(of(name)), lambda: verification_cases([name], ["mlp"], [2], "gloo")):
        with pytest.raises(ExperimentError) as error:
            plan()
        assert said in str(error.value)
        assert len(error.value.problems) == 1, error.value


LEAVES_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(1000,), name="waits").start()
"""
LEAVES_A_PROCESS = """
import multiprocessing, time
if __name__ != "__mp_main__":
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), name="waits").start()
"""
FORKS_AND_ENDS = """
import os
if not (child := os.fork()):
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize(
    ("top", "said"),
    [
        (
            LEAVES_A_THREAD,
            "the thread waits, which importing mine.py started, was still running at exit and was ended",
        ),
        (LEAVES_A_PROCESS, "the process waits was still running at exit and was ended"),
        (FORKS_AND_ENDS, ""),
    ],
)
def test_a_command_ends_although_what_a_file_has_started_runs_on(top: str, said: str) -> None:
    write("mine.py", top + textwrap.dedent(SOUND))
    Path("own.toml").write_text(of("mine.py:Sound"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ddpbench", "sweep", "own.toml", "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert said in done.stderr
    assert ("was still running" in done.stderr) == bool(said)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            "def promise(self, options): return 'exact'",
            r"its promise\(\) returned 'exact'; it must return one of",
        ),
        (
            "def promise(self, options): raise KeyError('k')",
            r"its promise\(\) failed: KeyError: 'k' \(mine.py:",
        ),
        ("def check(self, case): return 7", r"its check\(\) returned 7; it must return why it cannot"),
        ("def check(self, case): return 1 / 0", r"its check\(\) failed: ZeroDivisionError: .* \(mine.py:"),
        ("def check(self, case): raise SystemExit(3)", r"its check\(\) failed: SystemExit: 3 \(mine.py:"),
        ("def check(self, case): import os; os._exit(3)", r"its check\(\) failed: SystemExit: 3 \(mine.py:"),
        ("def trainers(self, world_size): return 'all'", r"its trainers\(\) returned 'all'"),
        (
            "def period(self, options): return 0",
            r"its period\(\) returned 0; it must return a whole number above 0",
        ),
        ("def accumulated(self, options): return 0", r"its accumulated\(\) returned 0"),
    ],
)
def test_what_it_answers_is_looked_at(method: str, said: str) -> None:
    write("mine.py", f"{textwrap.dedent(SOUND)}\n    {method}\n")
    with pytest.raises(DdpbenchError, match=said):
        cases_of(of("mine.py:Sound"))


def test_a_reason_of_its_own_skips_the_case() -> None:
    write("mine.py", f"{textwrap.dedent(SOUND)}\n    def check(self, case): return 'not today: wait'\n")
    planned = expand(experiment(of("mine.py:Sound") + "[axes]\nseed=[1]\n"), TableCatalog(), DEVICES)
    assert [one.skip_reason for one in planned] == ["not today: wait"]


def test_recovery_skips_what_carries_something_over() -> None:
    write("mine.py", f"{textwrap.dedent(SOUND)}\n    def promise(self, options): return 'delayed'\n")
    text = of("mine.py:Sound") + 'launcher = "torchrun"\nrecovery = "exception"\n'
    planned = expand(experiment(text), TableCatalog(), DEVICES)
    assert planned[0].skip_reason == "a snapshot does not hold what Sound carries over from step to step"
    assert not traits_of(planned[0].case).exact


def test_an_option_without_a_default_is_asked_for_and_reported() -> None:
    write("mine.py", SOUND.replace("ratio: float = 0.5", "ratio: float"))
    with pytest.raises(
        ExperimentError, match=r"options\.mine\.py:Sound\.ratio: must be given: it has no default"
    ):
        cases_of(of("mine.py:Sound"))
    for given in ('options."mine.py:Sound".ratio', "options.mine.py:Sound.ratio", "options.ratio", "ratio"):
        overrides = owned_overrides([f"{given}=1"], ["mine.py:Sound"], ["mlp"])
        (one,) = verification_cases(["mine.py:Sound"], ["mlp"], [2], "gloo", overrides=overrides)
        assert name_of(one.case) == "mine.py:Sound ratio=1.0"
        (case,) = cases_of(of("mine.py:Sound"), f"{given}=1")
        assert case.options == {"ratio": 1.0}
    swept = cases_of(of("mine.py:Sound"), "axes.options.ratio=[1, 2]")
    assert [case.options for case in swept] == [{"ratio": 1.0}, {"ratio": 2.0}]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "ratio: torch.dtype = torch.float32",
            "torch.float32 cannot be written as JSON, as a case's options are",
        ),
        (
            "ratio: float = 0.5\n        other: object = object()",
            "options.mine.py:Sound.other: <object object",
        ),
        (
            'ratio: float = 0.5\n        @field_validator("ratio")\n        def _(cls, _): raise KeyError("own")',
            "options.mine.py:Sound: cannot be checked: KeyError: 'own'",
        ),
        (
            'ratio: float = 0.5\n        @field_serializer("ratio")\n        def _(self, _): raise KeyError("own")',
            "options.mine.py:Sound.ratio: 0.5 cannot be written as JSON",
        ),
        (
            'ratio: float = 0.5\n        @model_validator(mode="after")\n        def _(self): raise SystemExit(3)',
            "options.mine.py:Sound: cannot be checked: SystemExit",
        ),
    ],
)
def test_options_that_cannot_be_in_a_plan_are_said_in_a_sentence(option: str, said: str) -> None:
    text = SOUND.replace("ratio: float = 0.5", option).replace(
        'extra="forbid"', 'extra="forbid", validate_default=True, arbitrary_types_allowed=True'
    )
    imports = "import torch\nfrom pydantic import field_serializer, field_validator, model_validator\n"
    write("mine.py", imports + textwrap.dedent(text))
    with pytest.raises(ExperimentError) as caught:
        cases_of(of("mine.py:Sound"))
    assert said in str(caught.value)
    with pytest.raises(ExperimentError) as caught:
        verification_cases(["mine.py:Sound"], ["mlp"], [2], "gloo")
    assert said in str(caught.value)


def test_two_files_with_one_class_name_stay_apart() -> None:
    write("a/mine.py")
    write("b/mine.py", SOUND.replace("0.5", "0.7"))
    text = (
        '[base]\nworld_size = 2\nworkload = "mlp"\n[axes]\nstrategy = ["a/mine.py:Sound", "b/mine.py:Sound"]'
        '\n[options."b/mine.py:Sound"]\nratio = 0.6\n'
    )
    first, second = cases_of(text)
    assert (first.options, second.options) == ({"ratio": 0.5}, {"ratio": 0.6})
    assert first.case_id != second.case_id
    second_alike = replace(second, options_json=first.options_json)
    names = [Namer([first, second_alike]).full(case) for case in (first, second_alike)]
    assert names == ["Sound · 2 ranks · Sound (a/mine.py)", "Sound · 2 ranks · Sound (b/mine.py)"]
    apart = [traits_of(case) for case in told_apart([first, second])]
    assert [traits.display for traits in apart] == ["Sound (a mine.py)", "Sound (b mine.py)"]
    assert len({(traits.colour, traits.marker) for traits in apart}) == 2


def test_two_classes_of_one_file_that_call_themselves_alike_are_told_apart() -> None:
    alike = textwrap.dedent(SOUND.replace('"mine"', '"mine"\n        display = "top-k"'))
    write("mine.py", alike + alike[alike.index("class Sound") :].replace("Sound", "SoundToo"))
    (one,), (other,) = (cases_of(of(f"mine.py:{name}")) for name in ("Sound", "SoundToo"))
    found = [traits_of(case).display for case in told_apart([one, other])]
    assert found == ["top-k (mine.py 1)", "top-k (mine.py 2)"]


def test_one_that_leaves_choices_is_reported_with_them() -> None:
    write("mine.py", "from ddpbench.strategies.ddp.strategy import Ddp\nclass Mine(Ddp): ...\n")
    axes = 'algorithm = ["all_reduce", "ring"]\nschedule = ["overlapped", "after_backward"]'
    found = cases_of(f"{of('mine.py:Mine')}[axes]\n{axes}\n")
    assert len({Namer(found).full(case) for case in found}) == 4
    assert Namer(found).full(found[-1]).endswith(" · ring · after backward")
    verified = verification_cases(["mine.py:Mine"], ["mlp"], [2], "gloo", algorithms=["all_reduce", "ring"])
    assert {name_of(one.case) for one in verified} == {
        f"mine.py:Mine{chosen}" for chosen in ("", " ring", " after backward", " ring after backward")
    }
    (traits,) = {traits_of(case) for case in told_apart(found)}
    assert (traits.display, traits.spoken, traits.role) == ("Mine", "Mine", ""), (
        "of its own, not of DDP's class"
    )
    assert (traits.colour, traits.marker) != ("#0072B2", "o")


def test_a_name_of_ddpbenchs_own_has_its_file_added() -> None:
    write("mine.py", SOUND.replace('"mine"', '"mine"\n        display = "DDP"'))
    (case,) = cases_of(of("mine.py:Sound"))
    found = told_apart([replace(case, strategy="ddp", strategy_traits=""), case])
    assert [traits_of(one).display for one in found] == ["DDP", "DDP (mine.py)"]


def test_a_changed_file_is_imported_again_and_is_another_program() -> None:
    path = write("mine.py")
    (before,) = cases_of(of("mine.py:Sound"))
    digest = sources_digest(sources_named([before]))
    path.write_text(path.read_text().replace("0.5", "0.125"), encoding="utf-8")
    (after,) = cases_of(of("mine.py:Sound"))
    assert after.options == {"ratio": 0.125}
    assert sources_digest(sources_named([before])) != digest
    assert sources_named([replace(before, strategy="ddp")]) == ["mlp:small"]


def test_what_it_imports_from_beside_it_is_found_and_hides_nothing() -> None:
    write("helper.py", "VALUE = 0.75\n")
    write("statistics.py", "raise RuntimeError('not this one')\n")
    write("mine.py", "    from helper import VALUE\n" + SOUND.replace("0.5", "VALUE"))
    before = [*sys.path]
    (case,) = cases_of(of("mine.py:Sound"))
    assert case.options == {"ratio": 0.75}
    assert sys.path[: len(before)] == before


def test_a_test_names_it_from_its_own_folder() -> None:
    write("tests/mine.py")
    given = {"strategy": "mine.py:Sound", "workload": "mlp", "options": {"mine.py:Sound": {"ratio": 0.1}}}
    found = _with_files(given, partial(located_among, folders=[Path("tests"), Path.cwd()], advice="move it"))
    assert found["strategy"] == "tests/mine.py:Sound"
    assert found["options"] == {"tests/mine.py:Sound": {"ratio": 0.1}}
    assert _within({"strategy": str(Path("tests/mine.py:Sound").resolve())}, Path.cwd()) == {
        "strategy": "tests/mine.py:Sound"
    }


def test_a_working_directory_that_it_leaves_is_come_back_to(tmp_path: Path) -> None:
    write("mine.py", f"    import os\n    os.chdir({str(tmp_path.parent)!r})\n{SOUND}")
    cases_of(of("mine.py:Sound"))
    assert Path.cwd() == tmp_path


def test_variables_that_it_sets_are_for_no_other_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED", "yes")
    write("mine.py", f"    import os\n    os.environ['ASKED'] = os.environ['OF_MINE'] = 'no'\n{SOUND}")
    cases_of(of("mine.py:Sound"))
    assert (os.environ["ASKED"], os.environ.get("OF_MINE")) == ("yes", None)


def test_threads_that_it_asks_for_in_a_rank_are_put_back() -> None:
    path = write(
        "mine.py", f"    import torch\n    torch.set_num_threads(torch.get_num_threads() + 3)\n{SOUND}"
    )
    before = torch.get_num_threads()
    place = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
    case = Case(workload="mlp", strategy=f"{path}:Sound", options_json='{"ratio": 0.5}')
    made = Training(case, place, torch.device("cpu"))
    assert made.options.ratio == 0.5
    assert torch.get_num_threads() == before


def test_what_it_prints_is_not_in_a_table_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    write("mine.py", SOUND + "\n    print('hello')\n")
    cases_of(of("mine.py:Sound"))
    assert "hello" not in capsys.readouterr().out


def test_a_name_without_its_file_is_reported_where_it_is_trained_too() -> None:
    with pytest.raises(StrategyError, match=r"gone.py cannot be imported: FileNotFoundError"):
        load_strategy("gone.py:Sound")


def run_with(tmp_path: Path, *cases: Case) -> Path:
    entries = [PlannedCase(case=case) for case in cases]
    return write_run(tmp_path / "run", entries, blocks=2, steps=4).path


def test_a_run_is_read_when_its_file_is_gone_and_imports_nothing(tmp_path: Path) -> None:
    path = write("mine.py", SOUND.replace('"mine"', '"mine"\n        display = "top-k"'))
    (case,) = cases_of(of("mine.py:Sound"))
    path.write_text("import pathlib\npathlib.Path('acted').touch()\n", encoding="utf-8")
    run = run_with(tmp_path, case.baseline(), case)
    for _ in range(2):
        found = rows_of(summarize(RunDir(run)))
        assert [row.strategy_name for row in found if row.case.world_size == 2] == ["top-k"]
        assert not Path("acted").exists()
        path.unlink(missing_ok=True)


def test_a_caveat_of_its_own_stands_on_the_page_as_text(tmp_path: Path) -> None:
    note = "<script>alert(1)</script> [here](http://example.com) @everyone"
    write("mine.py", SOUND.replace('"mine"', f'"mine"\n        note = {note!r}'))
    (case,) = cases_of(of("mine.py:Sound"))
    run = RunDir(run_with(tmp_path, case.baseline(), case))
    page = write_report(summarize(run), run).read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page


HOSTILE: dict[str, Any] = {
    "display": "<script>alert(1)</script>",
    "spoken": ["a"],
    "promise": "everything",
    "one_process": "yes",
    "uses_buckets": 1,
    "whole_state": None,
    "shows_transfers_on_gpus": "true",
    "note": "two\nlines",
    "colour": "red; background: url(x)",
    "marker": "$\\int$",
}


@pytest.mark.parametrize("field", HOSTILE)
def test_traits_that_no_strategy_says_are_a_damaged_plan(tmp_path: Path, field: str) -> None:
    write("mine.py")
    (case,) = cases_of(of("mine.py:Sound"))
    run = RunDir(run_with(tmp_path, case))
    read_plan(run)
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    stated = json.loads(plan["cases"][0]["strategy_traits"])
    for changed in ({**stated, field: HOSTILE[field]}, {k: v for k, v in stated.items() if k != field}):
        plan["cases"][0]["strategy_traits"] = json.dumps(changed)
        run.plan.write_text(json.dumps(plan), encoding="utf-8")
        with pytest.raises(IdentityError, match=rf"damaged.*strategy_traits: .*{field}"):
            read_plan(run)


@pytest.mark.parametrize("text", ["[]", "{", "7", '{"display": ' + "[" * 2000, "x" * 200_000])
def test_traits_that_are_no_table_are_a_damaged_plan(tmp_path: Path, text: str) -> None:
    write("mine.py")
    (case,) = cases_of(of("mine.py:Sound"))
    run = RunDir(run_with(tmp_path, case))
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    plan["cases"][0]["strategy_traits"] = text
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(IdentityError, match="damaged"):
        read_plan(run)


def test_a_strategy_of_ddpbench_is_what_its_class_says_whatever_a_plan_says() -> None:
    write("mine.py", SOUND.replace('"mine"', '"mine"\n        display = "top-k"'))
    (case,) = cases_of(of("mine.py:Sound"))
    assert traits_of(replace(case, strategy="master", options_json="{}")).display == "master"
    assert "strategy_traits" in planned_json(PlannedCase(case=case))
