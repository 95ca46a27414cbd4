"""Facts that the text of a user's file shows about a class: whether it makes its steps, and what is then skipped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.own_classes import has_own_step, missing, missing_module
from ddpbench.launch.own_workloads import check_file
from ddpbench.spec import parse_experiment
from tests.failures.conftest import run_cli

TEXT = """
class Plain:
    model = dataset = loss = dict
    class Inner:
        def step(self): ...
class Steps(Plain):
    def step(self, model, batch): ...
class Takes:
    step = print
class Inherits(Steps):
    pass
"""


@pytest.mark.parametrize(
    ("name", "own"), [("Plain", False), ("Steps", True), ("Takes", True), ("Inherits", True)]
)
def test_a_step_is_found_in_the_text(tmp_path: Path, name: str, own: bool) -> None:
    (tmp_path / "loops.py").write_text(TEXT, encoding="utf-8")
    assert has_own_step(f"{tmp_path}/loops.py:{name}") is own
    assert not has_own_step(f"{tmp_path}/none.py:{name}")


HANDED = "from loops import Steps as Handed\nfrom .deep import Steps as Beside\n"
IMPORTED = {
    "from loops import Steps\nclass Mine(Steps): ...": True,
    "from loops import Steps as Base\nclass Mine(Base): ...": True,
    "from loops import Plain\nclass Mine(Plain): ...": False,
    "import loops\nclass Mine(loops.Inherits): ...": True,
    "import loops as own\nclass Mine(own.Steps[int]): ...": True,
    "from inner import deep\nclass Mine(deep.Steps): ...": True,
    "import inner.deep\nclass Mine(inner.deep.Steps): ...": True,
    "from inner.deep import Steps as Mine": True,
    "from inner import Handed\nclass Mine(Handed): ...": True,
    "from inner import Beside\nclass Mine(Beside): ...": True,
    "from loops import Steps\nclass Mine(Steps):\n    step = None": False,
    "from nowhere import Steps\nclass Mine(Steps): ...": False,
    "from mine import Mine": False,
    "from ddpbench.workloads import Workload\nclass Mine(Workload[int]): ...": False,
    "from ddpbench.workloads.base import Workload\nclass Mine(Workload): ...": False,
}


@pytest.mark.parametrize(("text", "own"), IMPORTED.items())
def test_a_base_class_is_followed_into_the_file_that_it_is_imported_from(
    tmp_path: Path, text: str, own: bool
) -> None:
    (tmp_path / "loops.py").write_text(TEXT, encoding="utf-8")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text(
        "from loops import Steps as Handed\nfrom .deep import Steps as Beside\n", encoding="utf-8"
    )
    (tmp_path / "inner" / "deep.py").write_text(TEXT, encoding="utf-8")
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    assert has_own_step(f"{tmp_path}/mine.py:Mine") is own


def test_a_class_that_is_named_by_its_module_is_found_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "loops.py").write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert has_own_step("own.loops:Inherits")
    assert not has_own_step("own.loops:Plain")
    assert not has_own_step("own.none:Plain")


def test_what_cannot_run_an_own_step_is_skipped_with_its_reason() -> None:
    done = run_cli(
        *("sweep", "quick", "--dry-run", "--workload", "experiments/own_script/gan_after.py:Measured"),
        *("--set", "axes.strategy=['single', 'ddp', 'post_local_sgd', 'async_server']"),
        *("--set", "axes.world_size=[1, 2]"),
    )
    assert done.returncode == 0, done.stderr
    output = " ".join((done.stdout + done.stderr).split())
    assert "post_local_sgd aggregates between its backward and its update: it needs loss()" in output
    assert "async_server aggregates" in output
    assert "ddp aggregates" not in output


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "class Mind:\n    def model(self): ...\nclass Other: ...",
            "has no class Mine; did you mean 'Mind'? known: Mind",
        ),
        ("class Mind: ...", "has no class Mine; did you mean 'Mind'? known: Mind"),
        ("", "has no class Mine; known: none"),
        ("class Mind:\n    def f(:", ", line 2: invalid syntax"),
        ("class Mind:\n    x = '\0'", ", line 2: a null byte; save the file as UTF-8 text"),
        ("a = '\0'", ""),
    ],
)
def test_what_is_certainly_no_class_is_told_without_a_rank(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    assert reason in missing(f"{tmp_path}/own.py:Mine") != ""


@pytest.mark.parametrize(
    "text",
    [
        "class Mine: ...",
        "def made(): ...\nMine = made()",
        "from elsewhere import Mine",
        "from elsewhere import Other as Mine",
        "from elsewhere import *",
        "if True:\n    class Mine: ...",
        "globals()['Mine'] = int",
        "import sys\nsys.modules[__name__].Mine = int",
        "def __getattr__(name): ...",
        "import sys\nsys.modules[__name__].__setattr__('Mine', int)",
        "import sys, other\nsys.modules[__name__] = other",
        "import inspect, helper\nhelper.fill(inspect.currentframe().f_globals)",
        "match int:\n    case Mine: ...",
        "match [int]:\n    case [*Mine]: ...",
        "match {1: int}:\n    case {**Mine}: ...",
        "eval('(Mine := int)')",
        "import helper\nhelper.register(__name__)",
        "# -*- coding: latin-1 -*-\nname = 'Müller'\nclass Mine: ...",
    ],
)
def test_what_only_a_rank_can_tell_is_left_to_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.py").write_text(text, encoding="latin-1")
    assert not missing(f"{tmp_path}/own.py:Mine")
    assert not missing(f"{tmp_path}/none.py:Mine")
    assert not missing("package.module:Mine")


def test_classes_of_a_package_that_is_gone_are_named_once_and_their_options_are_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    why = (
        "module gone is neither in the working directory nor installed; name a class in a file as "
        "train.py:Measured"
    )
    options = '[options."gone.hooks:TopK"]\nratio = 0.1\n'

    def said(names: list[str], more: str = "") -> list[str]:
        text = f"[axes]\nstrategy = {json.dumps(['ddp', *names])}\n{options}{more}"
        with pytest.raises(ExperimentError) as raised:
            parse_experiment(text, TableCatalog(), name="e", source="e.toml")
        return [f"{one.path}: {one.message}" for one in raised.value.problems]

    top, other, third, last = (f"gone.hooks:{name}" for name in ("TopK", "Other", "Third", "Last"))
    assert said([top]) == [f"axes.strategy: {top!r}: {why}"]
    assert said([top, other]) == [f"axes.strategy: {top!r} and {other!r}: {why}"]
    assert said([top, other, third, last]) == [
        f"axes.strategy: {top!r}, {other!r}, {third!r} and 1 more: {why}"
    ]
    (only,) = said([top, "nowhere.py:Mine"])[1:]
    assert only.startswith("axes.strategy: there is no file "), "which is named already"
    # an independent error is still reported, and for a nearly correct name only the suggestion
    assert [line.partition(":")[0] for line in said([top], "[options.fsdp]\n")] == [
        "axes.strategy",
        "options.fsdp",
    ]
    unknown, unused = said([], '[base]\nworkload = "gpt:huge"\n[options.gpt]\n')
    assert unknown.startswith("base.workload: unknown workload 'gpt:huge'")
    assert unused.startswith("options.gone.hooks:TopK: 'gone.hooks:TopK' is not used by this experiment")


def test_a_module_that_is_nowhere_is_said_without_importing_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("train.py", "package/__init__.py", "folder/mine.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise SystemExit")
    nowhere = "is neither in the working directory nor installed; name a class in a file as train.py:Measured"
    assert missing_module("nosuch.mod:Mine") == f"module nosuch {nowhere}"
    assert missing_module("tiny.toml:Mine") == f"module tiny {nowhere}"
    for search in ([], [""], [str(tmp_path)]):
        monkeypatch.setattr(sys, "path", [*search, *sys.path])
        assert (
            missing_module("train.pt:Mine") == "train is a file, not a package; did you mean 'train.py:Mine'?"
        )
    for may_be in (
        "package.module:Mine",
        "folder.mine:Mine",
        "torch.nn:Linear",
        "os.path:Mine",
        "none.py:Mine",
    ):
        assert not missing_module(may_be)
    with pytest.raises(ValueError, match="module nosuch is neither"):
        check_file("nosuch.mod:Mine", None)


def test_a_dry_run_tells_a_wrong_class(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class Mine:\n    def model(self): ...", encoding="utf-8")
    ended = run_cli("sweep", "quick", "--workload", f"{tmp_path}/own.py:Mime", "--dry-run")
    assert ended.returncode == 2
    assert "has no class Mime; did you mean 'Mine'?" in ended.stderr
