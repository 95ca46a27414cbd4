"""Each side of a comparison imports its own copies of the modules that the compared repository holds."""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddpbench.errors import RequestError
from ddpbench.launch.interleave.own_files import with_checked_files, with_overrides
from ddpbench.launch.interleave.search import not_in_commit, with_search
from ddpbench.launch.interleave.sides import Placed, check_apart, parse_side, place, same_code
from ddpbench.launch.interleave.turns import side_environment
from ddpbench.side_code import SIDE, SideCode, shared_module
from tests.repositories import begin_repository, git

SOURCE = "packages/core/src"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with two packages, neither of them at its root or in `src`."""
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    for package in (folder / SOURCE / "core", folder / "libs" / "net"):
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "model.py").write_text("class Net: ...\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "packages")
    git(folder, "tag", "old")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


@pytest.fixture
def packages(environment: Path) -> Iterator[Path]:
    """Return the environment's folder of packages, and empty it again."""
    (folder,) = environment.glob("lib/python*/site-packages")
    yield folder
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()


def sides(
    repository: Path,
    *overrides: str,
    python: str = sys.executable,
    base: Sequence[str] = ("ref=old",),
    new: Sequence[str] = ("path=.",),
    experiment: Path | None = None,
) -> tuple[Placed, Placed]:
    one, other = parse_side("base", base), parse_side("new", new)
    experiment, out = experiment or repository / "bench" / "step.toml", repository.parent / "out"
    first, second = (
        with_overrides(place(side, experiment, out, against), overrides)
        for side, against in ((one, other), (other, one))
    )
    made = (_with(first, python), _with(second, python))
    return with_search(made)


def _with(side: Placed, python: str) -> Placed:
    return replace(side, python=python)


def imported(side: Placed, name: str) -> Path:
    """Return the file of a module in a process of the side."""
    done = subprocess.run(
        [side.python, "-P", "-c", f"import {name}; print({name}.__file__)"],
        env=side_environment(side),
        cwd=side.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


FINDER = """
import sys
from importlib.util import spec_from_file_location

MAPPING = {mapping}

class _Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return spec_from_file_location(name, MAPPING[name] + "/__init__.py")

def install():
    sys.meta_path.append(_Finder)
"""


@pytest.mark.parametrize("how", ["variable", "relative", "pth", "finder"])
def test_folders_of_the_search_path_are_each_sides_own(
    repository: Path, environment: Path, packages: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = repository / SOURCE
    if how in ("variable", "relative"):
        monkeypatch.setenv("PYTHONPATH", SOURCE if how == "relative" else str(folder))
    elif how == "pth":
        (packages / "core.pth").write_text(f"{folder}\n")
    else:
        mapping = {"core": str(folder / "core")}
        (packages / "__editable___core_finder.py").write_text(FINDER.format(mapping=mapping))
        (packages / "core.pth").write_text(
            "import __editable___core_finder; __editable___core_finder.install()\n"
        )
    base, new = sides(repository, python=str(environment / "bin" / "python"))
    assert base.folder is not None
    assert imported(base, "core.model") == base.folder / SOURCE / "core" / "model.py"
    assert imported(new, "core.model") == folder / "core" / "model.py"


def test_an_environment_in_the_repository_serves_both_sides(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = repository / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    base, new = sides(repository)
    assert installed not in (*base.first, *new.first)


def test_a_copy_of_a_package_is_refused_where_the_repository_has_its_source(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "elsewhere"
    (copy / "core").mkdir(parents=True)
    for name in ("__init__.py", "model.py"):
        (copy / "core" / name).write_text("class Net: ...\n")
    monkeypatch.setenv("PYTHONPATH", str(copy))

    def said(*overrides: str) -> str:
        try:
            with_checked_files(sides(repository, *overrides))
        except RequestError as error:
            return str(error)
        return ""

    for kind in ("workload", "strategy", "algorithm"):
        assert said(f"base.{kind}=core.model:Net") == (
            f"base (ref=old): its {kind} core.model:Net would be imported from {copy}/core/model.py, which is outside "
            f"its code: give its file by the path from the repository's root, {SOURCE}/core/model.py, or put {SOURCE} "
            "into PYTHONPATH, which is read as each side's own folder"
        )
    (copy / "other.py").write_text("class Net: ...\n")
    for kind in ("workload", "strategy"):
        assert said(f"base.{kind}=other:Net") == ""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, str(copy)]))
    assert said("base.workload=core.model:Net") == ""


def test_two_interpreters_of_one_environment_do_not_make_two_environments(
    repository: Path, environment: Path, packages: Path, tmp_path: Path
) -> None:
    """Either finds the other's packages, so that both sides would share an installed copy of the source."""
    copy = packages / "core.py"
    copy.write_text("class Net: ...\n")
    spare = tmp_path / "spare"
    venv.create(spare, with_pip=False, symlinks=True)
    (other,) = spare.glob("lib/python*/site-packages")
    (other / "core.py").write_text("class Net: ...\n")
    pythons = [str(environment / "bin" / name) for name in ("python", "python3")]

    def check(*pythons: str) -> None:
        base, new = sides(repository, "base.workload=core:Net")
        with_checked_files(with_search((_with(base, pythons[0]), _with(new, pythons[1]))))

    (repository / "libs" / "core.py").touch()
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "core")
    git(repository, "tag", "-f", "old")
    for pair in (pythons, pythons[:1] * 2):
        with pytest.raises(RequestError, match=f"core:Net would be imported from {copy}, which is outside"):
            check(*pair)
        words = [[f"python={python}"] for python in pair]
        with pytest.raises(RequestError, match="both sides are the same"):
            check_apart(parse_side("base", words[0]), parse_side("new", words[1]))
    alone = str(spare / "bin" / "python3")
    check(pythons[0], alone)
    check_apart(parse_side("base", [f"python={pythons[0]}"]), parse_side("new", [f"python={alone}"]))
    base, new = sides(repository, new=("ref=old",))
    assert same_code(_with(base, pythons[0]), _with(new, pythons[1]))
    assert not same_code(_with(base, pythons[0]), _with(new, alone))


def test_the_working_directory_comes_before_installed_packages_as_a_named_folder_does(
    repository: Path, environment: Path, packages: Path
) -> None:
    """Its layout is flat, and another version of it is installed."""
    python = str(environment / "bin" / "python")
    for folder in (repository, packages):
        (folder / "flat.py").write_text("class Net: ...\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "flat")
    git(repository, "tag", "-f", "old")
    made = base, new = sides(repository, "base.workload=flat:Net", python=python, new=())
    assert new.folder is None
    with_checked_files(made)
    assert base.folder is not None
    assert imported(base, "flat") == base.folder / "flat.py"
    assert imported(new, "flat") == repository / "flat.py"
    repository.chmod(0o777)  # then Python searches it last, for other users may have put files into it
    _, new = sides(repository, python=python, new=())
    assert repository not in new.first


@pytest.fixture
def copy_of_net(packages: Path) -> Iterator[Path]:
    """Return the folder with the facts on an installed package `net`, and remove it again."""
    info = packages / "net-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Net_Lib\nVersion: 1\n")
    (info / "RECORD").write_text("net/__init__.py,,\nnet/model.py,,\n../../bin/x.py,,\n")
    yield info
    shutil.rmtree(info)


def test_a_package_installed_from_the_repository_is_known_as_its_copy(
    repository: Path, environment: Path, copy_of_net: Path
) -> None:
    python, source = str(environment / "bin" / "python"), str(repository / "libs")
    origin = copy_of_net / "direct_url.json"

    def copies(*, python: str = python) -> list[Any]:
        return [side.code and side.code.copies for side in sides(repository, python=python)]

    origin.write_text(json.dumps({"url": f"file://{source}", "dir_info": {}}))
    assert copies() == [{}, {}]  # the folder is the same on both sides
    (repository / "libs" / "net" / "model.py").write_text("class Net: later = True\n")
    assert copies() == [{"net": source}] * 2
    git(repository, "commit", "-qam", "later")
    assert copies() == [{"net": source}] * 2
    base, new = sides(repository, python=python, base=("ref=old",), new=("ref=main",))
    assert [base.code and base.code.copies, new.code and new.code.copies] == [{"net": source}] * 2
    for editable_or_elsewhere in (
        {"url": f"file://{source}", "dir_info": {"editable": True}},
        {"url": f"file://{source}/dist/net_lib-1-py3-none-any.whl", "archive_info": {}},
    ):
        origin.write_text(json.dumps(editable_or_elsewhere))
        assert copies() == [{}, {}]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[project]\nname = "net.lib"\n'),
        ("pyproject.toml", '[tool.poetry]\nname = "net-lib"\n'),
        ("setup.cfg", "[metadata]\nname = Net-Lib\n"),
        ("setup.py", "from setuptools import setup\nsetup(version='1', name='net_lib')\n"),
    ],
)
def test_a_package_of_the_repositorys_project_is_its_copy_wherever_it_comes_from(
    repository: Path, environment: Path, copy_of_net: Path, file: str, text: str
) -> None:
    """For example from a wheel, or from an index."""
    (repository / "libs" / file).write_text(text)
    git(repository, "add", "-A")
    for side in sides(repository, python=str(environment / "bin" / "python")):
        assert side.code is not None
        assert side.code.copies == {"net": str(repository / "libs")}
    (repository / "libs" / file).write_text(text.replace("et", "ot"))
    for side in sides(repository, python=str(environment / "bin" / "python")):
        assert side.code is not None
        assert side.code.copies == {}


@pytest.fixture
def inner(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a clone of a dependency inside the repository, and let Python find its module."""
    folder = repository / "third_party" / "dep"
    begin_repository(folder, sleep=1.0)  # other files than the repository's, so that no commit is the same
    (folder / "python").mkdir()
    (folder / "python" / "dep.py").write_text("class Hook: ...\n")
    monkeypatch.setenv("PYTHONPATH", str(folder / "python"))
    return folder


def shared(repository: Path, *words: str) -> list[str]:
    """Return the folders from which the base may import, besides its own."""
    base, new = sides(repository, base=words or ("ref=old",))
    assert base.code is not None
    assert [inner in " ".join(base.notes) for inner in base.code.allowed] == [True] * len(base.code.allowed)
    assert new.code is not None
    assert new.code.allowed == base.code.allowed
    return [*base.code.allowed]


def test_a_clone_inside_the_repository_is_shared_unless_it_is_of_the_same_project(
    repository: Path, inner: Path, tmp_path: Path
) -> None:
    assert shared(repository) == [str(inner)]
    made = sides(repository, "base.strategy=dep:Hook")
    assert with_checked_files(made) == made
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "old")
    assert shared(repository, f"path={tmp_path / 'tree'}") == [str(inner)]
    for words in (("clone", "-q", str(repository)), ("clone", "-q", "--depth=1", f"file://{repository}")):
        shutil.rmtree(inner)
        git(repository, *words, str(inner))
        (inner / "python").mkdir()
        assert shared(repository) == []
    shutil.rmtree(inner)
    git(repository, "worktree", "add", "-q", str(inner), "fast")
    (inner / "python").mkdir()
    assert shared(repository) == []


def test_a_submodule_is_shared_at_the_commit_that_both_sides_name(repository: Path, inner: Path) -> None:
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "python")
    git(repository, "add", "third_party/dep")
    git(repository, "commit", "-qm", "submodule")
    git(repository, "tag", "-f", "old")
    assert shared(repository) == [str(inner)]
    (inner / "python" / "dep.py").write_text("class Hook: changed = True\n")
    assert shared(repository) == []
    git(inner, "commit", "-qam", "change")
    assert shared(repository) == []
    git(repository, "commit", "-qam", "change of the submodule")
    assert shared(repository) == []
    assert shared(repository, "ref=HEAD") == [str(inner)]


def test_a_folder_in_a_repository_uses_the_rest_of_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each side uses its own checkout, and both use one if both folders are in it."""
    monkeypatch.setenv("PYTHONPATH", str(repository / SOURCE))
    tree = tmp_path / "tree"
    git(repository, "worktree", "add", "-q", str(tree), "old")
    for folder in (repository, tree):
        for name in ("one", "two"):
            (folder / "bench" / name).mkdir()

    experiment = tmp_path / "step.toml"
    experiment.write_text("[base]\n")

    def two(base: str, new: str) -> tuple[Placed, Placed]:
        return sides(repository, base=(f"path={base}",), new=(f"path={new}",), experiment=experiment)

    def places(base: str, new: str) -> list[Path]:
        return [imported(side, "core.model").relative_to(tmp_path) for side in two(base, new)]

    file = Path(SOURCE) / "core" / "model.py"
    assert places(f"{tree}/bench", "bench") == ["tree" / file, "project" / file]
    assert places("bench/one", "bench/two") == ["project" / file] * 2
    base, new = two("bench/one", "bench/two")
    assert base.code is not None
    assert base.code.allowed == [str(repository)]
    assert base.notes[0].startswith(f"base (path=bench/one): modules in {repository / SOURCE} are used too")
    monkeypatch.setenv("PYTHONPATH", str(repository / "bench"))
    base, new = two(f"{tree}/bench/one", "bench")
    assert imported(base, "train") == tree / "bench" / "train.py"
    assert imported(new, "train") == repository / "bench" / "train.py"
    monkeypatch.setenv("PYTHONPATH", str(repository / SOURCE))
    own = repository / "bench" / "one" / "core"
    shutil.copytree(repository / SOURCE / "core", own)
    assert places("bench/one", "bench/two")[0] == (own / "model.py").relative_to(tmp_path)


def test_an_installed_workload_is_shared_and_must_import_own_code_if_nothing_else_differs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.py").write_text("class Net: ...\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    given = "base.workload=other:Net"

    def needed(*more: str) -> list[list[str]]:
        made = with_checked_files(sides(repository, given, base=("ref=old", *more)))
        return [[*side.code.shared_workloads] for side in made if side.code is not None]

    assert needed() == [["other:Net"]] * 2
    assert needed("set=base.local_batch=4") == [[]] * 2
    assert needed("env=FAST=1") == [[]] * 2
    with (repository / "bench" / "step.toml").open("a") as file:
        file.write("rounds_min = 7\n")  # the experiment is each side's own
    assert needed() == [[]] * 2


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "netlib.model", ModuleType("netlib.model"))


def _place(monkeypatch: pytest.MonkeyPatch, file: Path, side: SideCode) -> str:
    monkeypatch.setattr(sys.modules["netlib.model"], "__file__", str(file), raising=False)
    monkeypatch.setenv(SIDE, side.to_json())
    return shared_module()


@pytest.mark.usefixtures("module")
def test_a_module_of_other_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    own = tree / "reports" / ".code" / "abc"  # below the other code, as copies of commits often are
    for folder in (tree, own):
        (folder / "lib" / "netlib").mkdir(parents=True)
    file = Path("lib/netlib/model.py")
    base = SideCode(own=str(own), others=[str(tree)])
    new = SideCode(own=str(tree), others=[str(own)])
    assert _place(monkeypatch, own / file, base) == ""
    assert _place(monkeypatch, tree / file, new) == ""
    assert _place(monkeypatch, tmp_path / "else" / file, base) == ""
    assert _place(monkeypatch, tree / ".venv/lib/python3.11/site-packages/netlib/model.py", base) == ""
    said = _place(monkeypatch, tree / file, base)
    assert said == (
        f"it would import netlib.model from {tree / file}, which is outside its code: its code has no {file}. Compare "
        "commits that have it; what is built and not committed, and submodules, must be in a checkout of each side's "
        "commit: give both with path=FOLDER"
    )
    (own / file).touch()
    assert _place(monkeypatch, tree / file, base).endswith(
        f"its own copy is {own / file}. Put lib into PYTHONPATH, which is read as each side's own folder, and remove "
        "any absolute path to it from your code"
    )
    assert "outside its code" in _place(monkeypatch, own / file, new)
    link = tmp_path / "link"
    link.symlink_to(tree)
    assert f"from {tree / file}" in _place(monkeypatch, link / file, base)
    monkeypatch.delenv(SIDE)
    assert shared_module() == ""


@pytest.mark.usefixtures("module")
def test_an_installed_copy_of_compared_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = SideCode(own=str(tmp_path / "own"), others=[], copies={"netlib": "/project/python"})
    said = _place(monkeypatch, tmp_path / "site-packages" / "netlib" / "model.py", base)
    assert "which is outside its code: this is a copy of /project/python" in said
    assert _place(monkeypatch, tmp_path / "own" / "netlib" / "model.py", base) == ""


@pytest.mark.usefixtures("module")
def test_what_may_be_shared_is_not_named_unless_the_side_has_its_own_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    own = tree / "one"
    (own / "netlib").mkdir(parents=True)
    side = SideCode(
        own=str(own), others=[str(tree), str(tree / "two")], allowed=[str(tree), str(tree / "dep")]
    )
    for folder in ("lib", "dep"):
        assert _place(monkeypatch, tree / folder / "netlib" / "model.py", side) == ""
    assert "outside its code" in _place(monkeypatch, tree / "two" / "netlib" / "model.py", side)
    (own / "netlib" / "model.py").touch()
    said = _place(monkeypatch, tree / "lib" / "netlib" / "model.py", side)
    assert f"its own copy is {own / 'netlib' / 'model.py'}. Put . into PYTHONPATH" in said
    assert _place(monkeypatch, tree / "dep" / "netlib" / "model.py", side) == ""


@pytest.mark.usefixtures("module")
def test_a_workload_that_both_sides_share_must_import_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    side = SideCode(own=str(own), shared_workloads=["other:Net"])
    installed = own / ".venv" / "lib" / "site-packages" / "netlib" / "model.py"
    for file, is_own in ((own / "model.py", True), (installed, False), (tmp_path / "away.py", False)):
        assert _place(monkeypatch, file, side) == ""
        said = shared_module("other:Net")
        assert bool(said) is not is_own
        assert shared_module("mlp:small") == ""
    assert said == (
        f"it would run other:Net, which is outside its code: both sides run the same code, because no module of {own} "
        "is imported. Name a class in the repository; or let the sides differ by set=, env= or python="
    )


def test_a_users_module_with_the_name_of_one_of_pythons_own_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = SideCode(own=str(tmp_path / "own"), others=[str(tmp_path / "tree")])
    monkeypatch.setenv(SIDE, side.to_json())
    assert shared_module() == ""
    module = ModuleType("queue")
    module.__file__ = str(tmp_path / "tree" / "queue.py")
    monkeypatch.setitem(sys.modules, "queue", module)
    assert shared_module().startswith(f"it would import queue from {module.__file__}")


@pytest.mark.usefixtures("module")
def test_packages_that_pdm_keeps_in_the_repository_serve_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = SideCode(own=str(tmp_path / "own"), others=[str(tmp_path / "tree")])
    file = tmp_path / "tree" / "__pypackages__" / "3.11" / "lib" / "netlib" / "model.py"
    assert _place(monkeypatch, file, base) == ""


@pytest.mark.usefixtures("module")
def test_a_finder_that_comes_before_pythonpath_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finders of meson-python and scikit-build-core do."""
    own, tree, file = tmp_path / "own", tmp_path / "tree", Path("src/netlib/model.py")
    (own / file).parent.mkdir(parents=True)
    (own / file).touch()
    side = SideCode(own=str(own), others=[str(tree)])
    assert "Put src into PYTHONPATH" in _place(monkeypatch, tree / file, side)
    monkeypatch.syspath_prepend(own / "src")
    advice = "the finder of an editable installation comes before PYTHONPATH"
    assert advice in _place(monkeypatch, tree / file, side)
    monkeypatch.syspath_prepend(tree / "src")
    assert "remove any absolute path to it from your code" in _place(monkeypatch, tree / file, side)


def test_older_and_newer_versions_understand_a_sides_description() -> None:
    side = SideCode(own="a", others=["b"])
    assert set(json.loads(side.to_json())) == {"own", "others"}  # what the first version knows
    assert SideCode.from_json(json.dumps({"own": "a", "others": ["b"], "later": 1})) == side


@pytest.mark.usefixtures("module")
def test_an_installed_module_in_place_of_an_uncommitted_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script adds a folder to `sys.path` that only the checkout has, and another version is installed."""
    own, tree, site = (tmp_path / name for name in ("own", "tree", "site-packages"))
    for folder in (own, tree / "third_party" / "dep", site):
        folder.mkdir(parents=True)
    installed, theirs = site / "dep.py", tree / "third_party" / "dep" / "dep.py"
    for file in (installed, theirs):
        file.touch()
    dep = ModuleType("dep")
    monkeypatch.setitem(sys.modules, "dep", dep)

    def said(*listed: str, imported: Path = installed) -> str:
        dep.__file__ = str(imported)
        side = SideCode(own=str(own), others=[str(tree)], uncommitted={str(tree): listed})
        monkeypatch.setenv(SIDE, side.to_json())
        return shared_module()

    monkeypatch.syspath_prepend(site)
    assert said("third_party") == ""  # the script does not search there
    monkeypatch.syspath_prepend(own / "bench" / ".." / "third_party" / "dep")
    assert said() == ""  # a commit contains it: that it is vendored is the change
    assert said("third_party/other") == ""
    for listed in ("third_party", "third_party/dep", "third_party/dep/dep.py"):
        assert said(listed) == (
            f"it would import dep from {installed}, which is outside its code: the other side imports {theirs}, which "
            "no commit contains. Prepare a checkout of each side's commit, and give both with path=FOLDER"
        )
    (tree / "third_party" / "dep" / ".git").mkdir()
    assert said("third_party").endswith(
        f"path=FOLDER, or put {theirs.parent} into PYTHONPATH, so that both sides use it"
    )
    (tree / ".git").mkdir()
    assert said("third_party", imported=theirs).startswith("it would import dep from")  # no shared clone
    monkeypatch.syspath_prepend(site)
    assert said("third_party") == ""  # the installed one comes first on both sides
    monkeypatch.setattr(sys, "path", sys.path[1:])
    (own / "third_party" / "dep").mkdir(parents=True)
    (own / "third_party" / "dep" / "dep.py").touch()
    assert said("third_party") == ""


@pytest.mark.parametrize("how", ["source", "library"])
def test_code_that_is_loaded_by_its_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """No module has its file: `runpy` runs a source, and ctypes or torch loads a library."""
    own, tree = tmp_path / "own", tmp_path / "tree"
    side = SideCode(own=str(own), others=[str(tree)])
    monkeypatch.setenv(SIDE, side.to_json())
    for folder in (own, tree, tmp_path / "else"):
        folder.mkdir()
    name = "pace.py" if how == "source" else "libpace.so"

    def load(file: Path) -> object:
        if how == "source":
            file.write_text("def pace(): ...\n")
            return runpy.run_path(str(file))
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        shutil.copy(next(line[line.index("/") :] for line in maps if "/libm" in line), file)
        return ctypes.CDLL(str(file))

    kept = [load(folder / name) for folder in (own, tmp_path / "else")]
    assert shared_module() == ""
    kept.append(load(tree / name))
    said = f"it would import pace from {tree / name}" if how == "source" else f"from {tree / name}"
    assert said in shared_module()
    assert f"which is outside its code: its own copy is {own / name}" in shared_module()
    monkeypatch.syspath_prepend(own)
    assert (
        f"its own copy is {own / name}. Remove any absolute path to it from your code. Or if"
        in shared_module()
    )


def test_a_folder_that_pythonpath_cannot_name_is_refused(repository: Path, tmp_path: Path) -> None:
    odd = tmp_path / "12:30"
    git(repository, "worktree", "add", "-q", str(odd), "old")
    with pytest.raises(
        RequestError, match=r"12:30 cannot be imported, because ':' separates the folders of PYTHONPATH"
    ):
        sides(repository, base=(f"path={odd}",))


def test_each_side_builds_its_own_extensions(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch names a folder of built extensions by the extension's name alone."""
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)

    def folders(*given: Placed) -> list[str | None]:
        return [side_environment(side).get("TORCH_EXTENSIONS_DIR") for side in given]

    base, new = sides(repository, new=())
    assert base.folder is not None
    assert folders(base, new) == [str(base.folder.parent / f".{base.folder.name}.extensions"), None]
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "old")
    two = sides(repository, base=("path=.",), new=(f"path={tmp_path / 'tree'}",))
    other = (replace(two[0], python="/other/python"), two[1])
    for cache in (Path.home() / ".cache/torch_extensions", tmp_path / "given"):
        every = [*folders(*two), *folders(*other)]
        assert len({*every}) == 3
        assert all(one is not None and Path(one).parent == cache for one in every)
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "given"))


def test_what_no_commit_contains_is_known(
    repository: Path, inner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    (repository / ".gitignore").write_text("vendored/\n*.so\n")
    for name in ("vendored/dep", ".venv/lib", f"{SOURCE}/made"):
        (repository / name).mkdir(parents=True)
    for name in ("vendored/dep/a.py", ".venv/lib/b.py", "new.py", "new.txt", f"{SOURCE}/made/c.py"):
        (repository / name).touch()
    fast = f"{SOURCE}/core/_fast.cpython-311-x86_64-linux-gnu.so"
    for name in (fast, "libs/net/libnet.so.1", ".venv/lib/d.so", f"{SOURCE}/core/lib-net.so"):
        (repository / name).touch()
    base, new = sides(repository)
    assert base.code is not None
    assert {*base.code.uncommitted[str(repository)]} >= {
        "third_party",
        "vendored",
        "new.py",
        f"{SOURCE}/made",
    }
    assert not any(
        one.startswith(".venv") or one == "new.txt" for one in base.code.uncommitted[str(repository)]
    )
    assert base.notes == [f"base (ref=old): without {fast}, built in {repository} and not committed"]
    assert new.code is not None
    assert new.code.uncommitted == {}
    first, second = sides(repository, new=("ref=HEAD",))
    assert [first.notes, second.notes] == [[], []]
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "python")
    git(repository, "add", "third_party/dep")
    base, _ = sides(repository)
    assert base.code is not None
    assert "third_party/dep" in base.code.uncommitted[str(repository)]


def test_a_dependency_that_no_commit_contains_is_named_where_it_is_missing(
    repository: Path, inner: Path
) -> None:
    (repository / ".gitignore").write_text("vendored/\n")
    for name in ("vendored/lib/plain", "vendored/lib/many"):
        (repository / name).mkdir(parents=True)
    (repository / "vendored/lib/plain/__init__.py").touch()
    (repository / "vendored/lib/many/part.py").touch()
    base, new = sides(repository)

    def said(name: str) -> str:
        assert not_in_commit(new, f"No module named '{name}'") == ""
        return not_in_commit(base, f"No module named '{name}'")

    checkout = (
        "which no commit contains. Prepare a checkout of each side's commit, and give both with path=FOLDER"
    )
    assert said("plain") == f"{repository} has vendored/lib/plain, {checkout}"
    assert said("many.part") == f"{repository} has vendored/lib/many/part.py, {checkout}"
    assert said("many.other") == ""
    assert said("dep") == (
        f"{repository} has third_party/dep/python/dep.py, {checkout}, or put {inner / 'python'} into PYTHONPATH, so "
        "that both sides use it"
    )


@pytest.mark.parametrize(
    "error", ["No module named 'core._fast'", "ImportError: cannot import name '_fast' from 'core' (x)"]
)
def test_what_is_built_and_not_committed_is_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    built = f"{SOURCE}/core/_fast.cpython-311-x86_64-linux-gnu.so"
    base, new = sides(repository)
    assert not_in_commit(base, error) == ""
    (repository / built).touch()
    assert not_in_commit(base, error).startswith(
        f"{repository} has {built}, which no commit contains. Prepare a checkout"
    )
    assert not_in_commit(new, error) == ""
    assert not_in_commit(base, "No module named 'numpy'") == ""
