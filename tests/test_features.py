"""Each feature is one folder: without it everything else works, and the core knows none by name."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.cli import make_parser
from ddpbench.installed import GROUPS, OF_FEATURES, Registered, with_features
from ddpbench.report.page import FIGURES
from ddpbench.worker.rank.rank import Rank
from tests.folders import PACKAGE, copy_tree
from tests.lighter import sitecustomize as lighter
from tests.processes import python_path
from tests.recoveries import KILLED, FailingLaunch, write

ROOT = PACKAGE.parent
FEATURES = sorted(path.parent.name for path in (PACKAGE / "features").glob("*/__init__.py"))
KEPT = "claim_one_node_or_many"
"""The smallest of the kept runs."""


def registered(feature: str) -> tuple[Registered, ...]:
    found: tuple[Registered, ...] = importlib.import_module(f"ddpbench.features.{feature}").REGISTERED
    return found


def naming_features(folder: Path) -> list[str]:
    """Return the modules of the core that name a feature's module, also in a text that is imported."""
    named = re.compile(r"ddpbench\.features\.\w|ddpbench/features/\w|from ddpbench import .*\bfeatures\b")
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*.py"))
        if path.relative_to(folder).parts[0] != "features" and named.search(path.read_text(encoding="utf-8"))
    ]


def copied(to: Path) -> Path:
    """Copy the package with its compiled modules, its experiments, a kept run and one with failures."""
    for name in ("ddpbench", "experiments", f"reports/{KEPT}"):
        copy_tree(ROOT / name, to / name)
    write(to / "reports/failed", {KILLED: [FailingLaunch()] * 5})
    return to


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copied(tmp_path / "copy")


def ended(copy: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": python_path(copy), "COLUMNS": "100", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def commands_of(printed: str) -> list[str]:
    return re.findall(r"(?m)^    ([a-z]+)(?: |$)", printed.partition("COMMAND")[2])


def test_the_core_names_no_feature(tmp_path: Path) -> None:
    assert naming_features(PACKAGE) == []
    for line in (
        "from ddpbench.features.history import command",
        "importlib.import_module('ddpbench.features.history')",
        "from ddpbench import features",
    ):
        (tmp_path / "planted.py").write_text(line, encoding="utf-8")
        assert naming_features(tmp_path) == ["planted.py"]


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_registers_what_it_has_where_it_stands(feature: str) -> None:
    assert (
        (PACKAGE / "features" / feature / "__init__.py")
        .read_text(encoding="utf-8")
        .startswith('"""Feature: ')
    )
    for one in registered(feature):
        assert one.kind in {*GROUPS, *OF_FEATURES}
        module, _, function = one.path.partition(":")
        assert module.startswith(f"ddpbench.features.{feature}.")
        assert callable(getattr(importlib.import_module(module), function))
        if one.kind == "command":
            names = [*make_parser()._subparsers._group_actions[0].choices]  # type: ignore[union-attr, arg-type]
            assert names[names.index(one.name) - 1] == one.after
        if one.kind == "section":
            assert one.after in FIGURES


def test_a_rank_without_the_feature_that_its_case_asks_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rank: Any = object.__new__(Rank)
    rank.request, rank.place = SimpleNamespace(purpose="measure"), SimpleNamespace(attempt=1)
    rank.case = KILLED
    monkeypatch.setattr("ddpbench.worker.rank.rank._OF_FEATURES", {})
    with pytest.raises(RuntimeError, match='lacks the feature recovery: set recovery = "off"'):
        rank._train(None, None, None, None, (0, 0, 0))


def test_what_follows_nothing_that_is_there_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [
        Registered(kind="command", name=name, path="a:b", after=after)
        for name, after in (("second", "first"), ("late", "removed"), ("also", "first"))
    ]
    some.append(Registered(kind="section", name="other", path="a:b", after="first"))
    monkeypatch.setattr("ddpbench.installed._shipped", lambda: tuple(some))
    assert [*with_features("command", {"first": print, "third": print})] == [
        "first",
        "second",
        "also",
        "third",
        "late",
    ]


def pages_of(copy: Path) -> dict[str, str]:
    """Return the pages of the kept run, and of one with failures."""
    runs = (f"reports/{KEPT}", "reports/failed")
    code = f"from ddpbench.cli import run; print([run(['report', name]) for name in {runs}])"
    done = ended(copy, "-c", code, **{lighter.PAINTS: "svg"})
    assert done.stdout.endswith("[0, 0]\n"), done.stderr
    return {name: (copy / name / "report.html").read_text(encoding="utf-8") for name in runs}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, str]]:
    """Return the commands with all features, and the pages of runs."""
    copy = copied(tmp_path_factory.mktemp("whole") / "copy")
    return commands_of(ended(copy, "-m", "ddpbench", "--help").stdout), pages_of(copy)


@pytest.mark.multiprocess
@pytest.mark.parametrize("feature", FEATURES)
def test_without_its_folder_all_else_works(
    feature: str, copy: Path, whole: tuple[list[str], dict[str, str]]
) -> None:
    commands, pages = whole
    mine = [one.name for one in registered(feature) if one.kind == "command"]
    anchors = [f'id="{one.name}"' for one in registered(feature) if one.kind == "section"]
    assert {*mine} < {*commands}
    assert all(anchor in "".join(pages.values()) for anchor in anchors)
    shutil.rmtree(copy / "ddpbench/features" / feature)
    modules = "ddpbench.analysis, ddpbench.pytest_plugin, ddpbench.report.page, ddpbench.worker.rank.rank"
    imported = ended(copy, "-c", f"import {modules}; print(ddpbench.__file__)")
    assert imported.stdout == f"{copy / 'ddpbench/__init__.py'}\n", imported.stderr
    printed = ended(copy, "-m", "ddpbench", "--help").stdout
    assert commands_of(printed) == [name for name in commands if name not in mine]
    for name in mine:
        refused = ended(copy, "-m", "ddpbench", name)
        assert (refused.returncode, "invalid choice" in refused.stderr) == (2, True)
    for name, page in pages_of(copy).items():
        assert not any(anchor in page for anchor in anchors)
        assert page == pages[name] or any(anchor in pages[name] for anchor in anchors)


@pytest.mark.multiprocess
@pytest.mark.thorough
@pytest.mark.parametrize("feature", FEATURES)
def test_without_its_folder_tests_of_the_rest_pass(feature: str, copy: Path) -> None:
    copy_tree(ROOT / "tests", copy / "tests")
    for name in ("pyproject.toml", "README.md", "Makefile", "docs"):
        (copy / name).symlink_to(ROOT / name)
    shutil.rmtree(copy / "reports")
    (copy / "reports").symlink_to(ROOT / "reports")
    shutil.rmtree(copy / "ddpbench/features" / feature)
    shutil.rmtree(copy / "tests/features" / feature)
    files = (
        *("analysis/test_answer.py", "analysis/test_summary.py", "cli/test_torch_free.py", "features"),
        *("launch/test_installed.py", "records/test_submission_dir.py", "report/test_report.py"),
        *("report/test_tables.py", "test_structure.py"),
    )
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable", "-m", "not thorough"]
    names_what_features_look_up = "not test_the_report_reads_results_as_attributes"
    tested = ["-k", names_what_features_look_up, *(f"tests/{name}" for name in files)]
    done = ended(copy, *command, *tested, PYTHONPATH=str(copy))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
