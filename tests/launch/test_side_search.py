"""Each side of a comparison imports its own copies of the modules that the compared repository holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ddpbench.errors import RequestError
from ddpbench.launch.interleave.own_files import check_own_files, with_overrides
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
) -> tuple[Placed, Placed]:
    one, other = parse_side("base", base), parse_side("new", new)
    experiment, out = repository / "bench" / "step.toml", repository.parent / "out"
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
            check_own_files(sides(repository, *overrides))
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
    assert said("base.strategy=other:Net") == ""
    assert said("base.workload=other:Net").endswith(
        "give each side its own environment with python=, or name a class in the repository"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, str(copy)]))
    assert said("base.workload=core.model:Net") == ""


def test_two_interpreters_of_one_environment_do_not_make_two_environments(
    repository: Path, environment: Path, packages: Path, tmp_path: Path
) -> None:
    """One of them finds the other's packages, so that both sides would share an installed copy of the source."""
    copy = packages / "core.py"
    copy.write_text("class Net: ...\n")
    spare = tmp_path / "spare"
    venv.create(spare, with_pip=False, symlinks=True)
    (other,) = spare.glob("lib/python*/site-packages")
    (other / "core.py").write_text("class Net: ...\n")
    pythons = [str(environment / "bin" / name) for name in ("python", "python3")]

    def check(*pythons: str) -> None:
        base, new = sides(repository, "base.workload=core:Net")
        check_own_files(with_search((_with(base, pythons[0]), _with(new, pythons[1]))))

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
    check_own_files(made)
    assert base.folder is not None
    assert imported(base, "flat") == base.folder / "flat.py"
    assert imported(new, "flat") == repository / "flat.py"
    repository.chmod(0o777)  # then Python searches it last, for other users may have put files into it
    _, new = sides(repository, python=python, new=())
    assert repository not in new.first


def test_a_package_installed_from_the_repository_is_known_as_its_copy(
    repository: Path, environment: Path, packages: Path
) -> None:
    info = packages / "net-1.dist-info"
    info.mkdir(exist_ok=True)
    try:
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: net\nVersion: 1\n")
        (info / "RECORD").write_text("net/__init__.py,,\nnet/model.py,,\n../../bin/x.py,,\n")
        origin = {"url": f"file://{repository / 'libs'}", "dir_info": {}}
        (info / "direct_url.json").write_text(json.dumps(origin))
        base, new = sides(repository, python=str(environment / "bin" / "python"))
        for side in (base, new):
            assert side.code is not None
            assert side.code.copies == {"net": str(repository / "libs")}
        (info / "direct_url.json").write_text(json.dumps(origin | {"dir_info": {"editable": True}}))
        base, _ = sides(repository, python=str(environment / "bin" / "python"))
        assert base.code is not None
        assert base.code.copies == {}
    finally:
        for path in info.iterdir():
            path.unlink()
        info.rmdir()


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
        "commits that have it; what is built and not committed must be built in a checkout of each side's commit: "
        "give both with path=FOLDER"
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
    assert not_in_commit(base, error).startswith(f"{repository} has {built}, but the commit does not")
    assert not_in_commit(new, error) == ""
    assert not_in_commit(base, "No module named 'numpy'") == ""
