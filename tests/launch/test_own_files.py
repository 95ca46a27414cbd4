"""Each side of a comparison measures its own version of users' files; what both would share is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddpbench.errors import RequestError
from ddpbench.launch.interleave.own_files import with_checked_files, with_overrides
from ddpbench.launch.interleave.search import with_search
from ddpbench.launch.interleave.sides import parse_side, place
from ddpbench.shipped import shipped_experiments
from tests.repositories import begin_repository, git


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with a workload, a hook, an algorithm, a profile, and a package that is not at its root."""
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0, experiment='[base]\nworkload = "mlp:small"\n')
    for name in ("hook.py", "ring.py"):
        (folder / "bench" / name).write_text("class Own: ...\n")
    (folder / "bench" / "profile.json").write_text(json.dumps({}))
    for name in ("src/inner", "lib/outer"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
        (folder / name / "train.py").write_text("class Measured: ...\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "own files")
    monkeypatch.chdir(folder)
    return folder


def check(
    experiment: Path,
    *overrides: str,
    base: Sequence[str] = ("main",),
    new: Sequence[str] = (".",),
) -> str:
    """Return why a comparison is refused; empty if it is not."""
    one, other = parse_side("base", base), parse_side("new", new)
    out = experiment.parent / "out"
    try:
        sides = (place(one, experiment, out, other), place(other, experiment, out, one))
        first, second = (with_overrides(side, overrides) for side in sides)
        with_checked_files(with_search((first, second)))
    except RequestError as error:
        return str(error)
    return ""


OWN = [
    ("workload", "bench/train.py", ":Measured"),
    ("strategy", "bench/hook.py", ":Own"),
    ("algorithm", "bench/ring.py", ":Own"),
    ("workload", "bench/profile.json", ""),
]


@pytest.mark.parametrize("where", ["file", "axes", "set", "bare", "side"])
@pytest.mark.parametrize(("kind", "file", "name"), OWN)
def test_a_file_of_the_working_tree_is_not_that_of_a_commit(
    repository: Path, where: str, kind: str, file: str, name: str
) -> None:
    prefix = "" if name else "replay:"
    experiment = repository / "bench" / "step.toml"

    def refused(given: str) -> str:
        words = f"{prefix}{given}{name}"
        if where in ("file", "axes"):
            table = f'[axes]\n{kind} = ["{words}"]' if where == "axes" else f'[base]\n{kind} = "{words}"'
            experiment.write_text(f"{table}\n")
            git(repository, "commit", "-qam", given)
            return check(experiment)
        key = kind if where == "bare" else f"base.{kind}"
        if where == "side":
            return check(experiment, base=("ref=main", f"set={key}={words}"))
        return check(experiment, f"{key}={words}")

    whole = repository / file
    said = refused(str(whole))
    assert said.startswith("base (ref=main")
    assert f"its {kind} {prefix}{whole} is outside its code: " in said
    assert said.endswith(f"give its path from the repository's root, {file}")
    assert refused(file) == ""
    assert refused(Path(file).name) == ""  # from the experiment's folder


def test_settings_replace_what_the_file_says_before_it_is_judged(repository: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (away / "train.py").write_text("class Measured: ...\n")
    experiment = away / "step.toml"
    for given in ('[base]\nworkload = "train.py:Measured"\n', '[axes]\nworkload = ["train.py:Measured"]\n'):
        experiment.write_text(given)
        said = check(experiment)
        assert "outside its code: put the experiment into the repository, next to the code" in said
        assert check(experiment, "base.workload=bench/train.py:Measured") == ""
        one = "set=base.workload=bench/train.py:Measured"
        assert check(experiment, base=("main", one)).startswith("new (path=.)")
        assert check(experiment, base=("main", one), new=(".", one)) == ""


def test_a_file_beside_the_repository_is_not_the_code_of_a_side(repository: Path, tmp_path: Path) -> None:
    hook, profile = tmp_path / "hook.py", tmp_path / "profile.json"
    hook.write_text("class Own: ...\n")
    profile.write_text("{}")
    experiment = repository / "bench" / "step.toml"
    for kind in ("strategy", "algorithm", "workload"):
        said = check(experiment, f"base.{kind}={hook}:Own")
        assert said.endswith("put it into the repository, and give its path from the repository's root")
    assert (
        check(experiment, f"base.workload=replay:{profile}") == ""
    )  # a profile is data, which both may share
    alike = ("set=base.local_batch=4",)
    assert check(experiment, f"base.strategy={hook}:Own", base=alike, new=()) == ""


def test_the_file_to_move_is_named(repository: Path, tmp_path: Path) -> None:
    away = tmp_path / "away.py"
    away.write_text("class Measured: ...\n")
    (repository / "bench" / "linked.py").symlink_to("../../away.py")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "link")
    experiment = repository / "bench" / "step.toml"
    said = check(experiment, "base.workload=linked.py:Measured")
    assert said.endswith(
        f"its workload linked.py would be {away}, which is outside its code: a symbolic link leads to it: put the file "
        "itself into the repository"
    )
    said = check(experiment, "base.workload=../../away.py:Measured", new=(str(repository),))
    assert said.endswith("put this file into the repository, and give its path from the repository's root")


def test_a_folder_in_the_repository_has_only_its_own_files(repository: Path) -> None:
    said = check(repository / "bench" / "step.toml", f"base.strategy={repository / 'bench/hook.py'}:Own")
    assert said.startswith("base (ref=main)")
    experiment = repository.parent / "step.toml"
    experiment.write_text('[base]\nworkload = "mlp:small"\n')
    hook = f"base.strategy={repository / 'bench/hook.py'}:Own"
    said = check(experiment, hook, base=("path=src",), new=("main",))
    assert said.startswith("base (path=src)")
    assert said.endswith("give the root of its repository, path=.")
    for base, new in ((("path=lib",), ("path=src",)), (("path=lib",), (".",))):
        said = check(experiment, hook, base=base, new=new)
        assert said.endswith("is outside its code: put a copy of it into each side's folder")


def test_the_checkout_of_the_other_side_is_not_the_code_in_the_working_directory(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "fast")
    whole = tmp_path / "tree" / "bench" / "train.py"
    said = check(
        repository / "bench" / "step.toml",
        f"base.workload={whole}:Measured",
        base=(str(tmp_path / "tree"),),
        new=(),
    )
    assert said.startswith(f"new: its workload {whole} is outside its code")


def test_a_module_is_imported_from_each_sides_code(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repository / "lib"))
    experiment = repository / "bench" / "step.toml"
    assert check(experiment, "base.workload=inner.train:Measured") == ""
    assert check(experiment, "base.workload=outer.train:Measured") == ""
    (repository / "lib" / "outer" / "later.py").write_text("class Measured: ...\n")
    (repository / "lib" / "only").mkdir()
    (repository / "lib" / "only" / "here.py").write_text("class Measured: ...\n")
    file = repository / "lib" / "only" / "here.py"
    assert check(experiment, "base.workload=only.here:Measured") == (
        f"base (ref=main): its workload only.here:Measured would be imported from {file}, which is outside its code: "
        "give its file by the path from the repository's root, such as lib/only/here.py"
    )
    assert check(experiment, "base.workload=lib/outer/train.py:Measured") == ""
    assert check(experiment, "base.strategy=nowhere.at_all:Own") == ""  # reported when the side starts


def test_both_sides_name_their_files_alike_from_a_folder_below(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code in the working directory is that of its repository, if the other side is a whole one too."""
    below = repository / "bench"
    monkeypatch.chdir(below)
    here, out = parse_side("new", []), repository.parent / "out"

    def folder(word: str) -> Path | None:
        return place(here, below / "step.toml", out, parse_side("base", [word])).folder

    assert folder("ref=main") == folder(f"path={repository}") == repository
    for word in ("path=../lib", "set=base.local_batch=4"):
        assert folder(word) is None
    monkeypatch.chdir(repository)
    assert folder("ref=main") is None


def test_hooks_that_ship_with_ddpbench_measure_each_sides_training(repository: Path) -> None:
    experiment = shipped_experiments() / "own_strategy.toml"
    assert check(experiment, "base.workload=bench/train.py:Measured") == ""


def test_a_path_is_meant_from_the_working_directory_in_a_folder_below_too(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "bench")
    experiment = tmp_path / "shipped" / "quick.toml"
    experiment.parent.mkdir()
    experiment.write_text("")

    def seen(word: str, *overrides: str) -> tuple[str, ...]:
        return with_overrides(
            place(parse_side("base", [word] if word else []), experiment, tmp_path / "out"), overrides
        ).overrides

    given = ("workload=train.py:Measured", "base.workload=replay:profile.json", "base.local_batch=4")
    for word in ("ref=main", f"path={repository}"):
        assert seen(word, *given) == (
            'workload="bench/train.py:Measured"',
            'base.workload="replay:bench/profile.json"',
            "base.local_batch=4",
        )
        assert seen(word, 'axes.strategy=["ddp", "hook.py:Own"]') == (
            'axes.strategy=["ddp", "bench/hook.py:Own"]',
        )
        unchanged = (
            "workload=gone.py:M",
            "base.strategy=ddp",
            "algorithm=bench/ring.py:Own",
            "budget.until_s=1",
        )
        assert seen(word, *unchanged) == unchanged
    for word in ("", "path=."):  # its processes start in this folder
        assert seen(word, *given) == given
    (experiment.parent / "train.py").touch()  # next to the experiment comes first
    assert seen("ref=main", given[0]) == given[:1]
    monkeypatch.chdir(repository)
    assert seen("ref=main", given[0]) == given[:1]
