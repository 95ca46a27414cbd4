"""Sides of a comparison: the facts recorded about the measured code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpbench.errors import RequestError
from ddpbench.launch.interleave import sides
from ddpbench.launch.interleave.bisect import commits_between
from ddpbench.launch.interleave.sides import (
    SideSpec,
    _commit_of,
    check_apart,
    check_common,
    check_there,
    parse_side,
    place,
    same_code,
    without_order,
)
from ddpbench.machine.identity import git_commit
from ddpbench.records import rundir
from ddpbench.records.rundir import MARK
from ddpbench.spec.matching import fields_apart
from tests.repositories import begin_repository, commit_training, git


def test_what_python_keeps_beside_a_module_is_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    spec = SideSpec(name="new", path=str(folder))
    commit = git(folder, "rev-parse", "--short=12", "HEAD")
    (folder / "bench" / "__pycache__").mkdir()
    (folder / "bench" / "__pycache__" / "train.cpython-311.pyc").touch()
    assert _commit_of(spec, folder / "bench", tmp_path) == commit
    (folder / "other.py").touch()
    assert _commit_of(spec, folder / "bench", tmp_path) == f"{commit}+"


def test_what_a_comparison_writes_is_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    spec = SideSpec(name="new", path=str(folder))
    commit = git(folder, "rev-parse", "--short=12", "HEAD")
    out = folder / "reports" / "compare-1"
    out.mkdir(parents=True)
    (out / "comparison.json").touch()
    assert _commit_of(spec, folder, out) == commit
    (folder / "reports" / "mine.py").touch()
    assert _commit_of(spec, folder, out) == f"{commit}+"


def test_what_ddpbench_has_written_before_is_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    spec = SideSpec(name="new", path=str(folder))
    commit = git(folder, "rev-parse", "--short=12", "HEAD")
    run, earlier = folder / "reports" / "run", folder / "reports" / "compare-1"
    for where, mark, key in ((run, "plan.json", "cases"), (earlier, "comparison.json", "order")):
        where.mkdir(parents=True)
        (where / mark).write_text(json.dumps({"schema_version": 1, key: []}))
    (run / "report.html").touch()
    killed = earlier / "new"
    killed.mkdir()
    (killed / MARK).write_text(rundir._MARK_TEXT)
    (killed / "cases").mkdir()
    (killed / "cases" / "launch.json").touch()
    assert _commit_of(spec, folder, tmp_path) == commit
    for own in (run / "mine.py", folder / "cases" / "mine.py", folder / "plan.json"):
        own.parent.mkdir(exist_ok=True)
        own.touch()
        assert _commit_of(spec, folder, tmp_path) == f"{commit}+"
        own.unlink()


def test_a_bare_repository_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    monkeypatch.chdir(tmp_path / "bare.git")
    with pytest.raises(
        RequestError, match="is in a bare repository, which git does not use here: work in a clone"
    ):
        check_there(SideSpec(name="base", ref="main"))


def test_a_repository_is_that_of_the_folder_in_a_hook_of_another_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git gives its hooks variables that name the repository that called them."""
    folder, other = tmp_path / "project", tmp_path / "other"
    begin_repository(folder, sleep=0.0)
    begin_repository(other, sleep=0.001)
    commit = git(folder, "rev-parse", "--short=12", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", ".git/index")
    monkeypatch.setenv("GIT_WORK_TREE", ".")
    monkeypatch.setenv(
        "GIT_OBJECT_DIRECTORY", str(other / ".git" / "objects")
    )  # where a push waits for the hook
    placed = place(
        SideSpec(name="new", path=str(folder)), folder / "bench" / "step.toml", tmp_path / "reports"
    )
    assert placed.commit == commit
    assert placed.experiment == folder / "bench" / "step.toml"
    monkeypatch.chdir(folder / "bench")
    assert git_commit() == commit


def test_the_copy_of_a_commit_has_what_its_archives_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    (folder / ".gitattributes").write_text("bench export-ignore\nversion.py export-subst\n")
    (folder / "version.py").write_text("COMMIT = '$Format:%H$'\n")
    (folder / "link.py").symlink_to("version.py")
    (folder / "run.sh").write_text("")
    (folder / "run.sh").chmod(0o755)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "attributes")
    (folder / "version.py").write_text("COMMIT = 'changed since'\n")
    git(folder, "add", ".")
    before = git(folder, "status", "--porcelain")
    monkeypatch.chdir(folder)
    out = tmp_path / "compare-1"
    placed = place(SideSpec(name="base", ref="HEAD"), folder / "bench" / "step.toml", out)
    assert placed.folder is not None
    assert (placed.folder / "bench" / "step.toml").is_file()
    assert (placed.folder / "version.py").read_text() == "COMMIT = '$Format:%H$'\n"
    assert (placed.folder / "link.py").is_symlink()
    assert (placed.folder / "run.sh").stat().st_mode & 0o100
    assert git(folder, "status", "--porcelain") == before


def test_the_repositorys_own_pytest_and_git_do_not_find_the_copy_of_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    (folder / "conftest.py").write_text("")
    (folder / "test_own.py").write_text(
        "def test_own():\n    assert __file__.endswith('project/test_own.py')\n"
    )
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "tests")
    monkeypatch.chdir(folder)
    out = folder / "reports" / "compare-1"
    placed = place(SideSpec(name="base", ref="HEAD"), folder / "bench" / "step.toml", out)
    assert placed.folder is not None
    assert (placed.folder / "test_own.py").is_file()
    assert placed.folder.is_relative_to(out)
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:ddpbench"]
    every_folder = ["-o", "norecursedirs=nothing"]
    for words in ([], ["reports"], ["--doctest-modules"], ["--import-mode=append"], every_folder):
        done = subprocess.run([*pytest_run, *words], capture_output=True, text=True, check=False)
        assert done.returncode == (5 if words == ["reports"] else 0), done.stdout
        assert ("1 passed" in done.stdout) == (words != ["reports"]), done.stdout
    assert git(folder, "status", "--porcelain", "--untracked-files=all", "--", "reports") == ""


@pytest.mark.parametrize(
    ("bare", "whole"),
    [
        ("precision=bf16", "base.precision=bf16"),
        ("nodes=2", "fabric.nodes=2"),  # or base.nodes, which is among them
        ("accumulate=2", "options.ddp.accumulate=2"),
        ("axes.accumulate=[1]", "options.ddp.accumulate=1"),
        ("base={precision='bf16'}", "base.precision=bf16"),
        ("axes.fabric.bandwidth=['1 Gbit/s']", "fabric.bandwidth='1 Gbit/s'"),
    ],
)
def test_sides_differ_in_the_same_fields_however_a_setting_is_written(bare: str, whole: str) -> None:
    assert fields_apart([whole], [])
    assert fields_apart([bare], []) == fields_apart([], [whole]) == fields_apart([whole], [])


def test_a_side_has_no_rounds_of_its_own_by_their_bare_name_either() -> None:
    with pytest.raises(
        RequestError, match="a comparison chooses the number and order of its rounds itself: use --total"
    ):
        parse_side("base", ["set=rounds_max=5"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("set=base.local_batch=4", "set=local_batch=8"),
        ("set=env.NCCL_ALGO='Tree'", "env=NCCL_ALGO=Ring"),
        ("env=NAME=1", "env=NAME=2"),
        ("ref=main", "ref=other"),
        ("path=a", "path=b"),
        ("python=python3.12", "python=python3.13"),
    ],
)
def test_what_a_side_gives_twice_is_refused(first: str, second: str) -> None:
    with pytest.raises(RequestError, match=r"given twice, as .* and .*; give it once"):
        parse_side("base", [first, second])
    assert parse_side("base", [first, first]) == parse_side("base", [first])


def test_a_side_gives_no_second_value_of_what_both_have() -> None:
    with pytest.raises(
        RequestError, match=r"--set and --new: given twice, as .local_batch=4. and .base.local_"
    ):
        check_common(["local_batch=4"], [parse_side("new", ["set=base.local_batch=8"])])
    check_common(["local_batch=4", "budget.seed=7"], [parse_side("new", ["set=base.threads_per_rank=2"])])


@pytest.mark.parametrize(
    ("key", "instead"),
    [("rounds_min", "use --rounds"), ("rounds_max", "use --total"), ("total", "use --total")],
)
def test_rounds_are_refused_however_they_are_written(key: str, instead: str) -> None:
    for text in (f"{key}=4", f"budget.{key}=4", f"budget={{{key}=4}}", f"budget={{until_s=1, {key}=4}}"):
        for refused in (lambda: check_common([text]), lambda: parse_side("new", [f"set={text}"])):  # noqa: B023
            with pytest.raises(RequestError) as caught:
                refused()
            assert str(caught.value) in (
                (
                    f"--set budget.{key}: a comparison chooses the number and order of its rounds itself: "
                    f"{instead}"
                ),
                (
                    f"--new set=budget.{key}: a comparison chooses the number and order of its rounds "
                    f"itself: {instead}"
                ),
            )


def test_a_search_has_no_flag_for_rounds() -> None:
    with pytest.raises(RequestError, match="itself: use --total"):
        check_common(["rounds_min=4"], fewest="--total")


def test_the_seed_of_rounds_in_a_table_is_not_a_sides_either() -> None:
    with pytest.raises(RequestError, match=r"--new set=budget.seed: .*: leave it out"):
        parse_side("new", ["set=budget={seed=3}"])
    with pytest.raises(RequestError, match=r"--set budget.seed: .*: leave it out"):
        check_common(["budget={seed=3, until_s=1}"])
    check_common(["budget={seed=3}"])
    assert without_order(["budget={seed=3}", "budget.seed=3", "seed=3", "budget={until_s=1}", "x"]) == [
        "seed=3",
        "budget={until_s=1}",
        "x",
    ]


def _refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "main") -> list[str]:
    """Return what a side and a search report on a commit's name."""
    monkeypatch.chdir(folder)
    with pytest.raises(RequestError) as side:
        check_there(SideSpec(name="base", ref=name))
    with pytest.raises(RequestError) as search:
        commits_between(folder, name, name)
    return [str(side.value), str(search.value)]


def test_a_repository_that_another_user_owns_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_repository(tmp_path, sleep=0.0)
    (tmp_path / "sub folder").mkdir()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # as in a container into which it is mounted
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    for said in _refusals(tmp_path / "sub folder", monkeypatch):
        assert "no git repository" not in said
        assert "another user owns" in said
        assert f"git config --global --add safe.directory {tmp_path}" in said


def test_without_git_it_is_git_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_repository(tmp_path, sleep=0.0)
    monkeypatch.setenv("PATH", str(tmp_path))
    for said in _refusals(tmp_path, monkeypatch):
        assert "git is not installed here" in said
        assert "no git repository" not in said


def test_a_partial_clone_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, clone = tmp_path / "project", tmp_path / "clone"
    begin_repository(project, sleep=0.0)
    commit_training(project, "later", sleep=0.1)
    git(project, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{project}", str(clone))
    monkeypatch.chdir(clone)
    with pytest.raises(
        RequestError, match="it is a partial clone, so give a checkout of the commit: git worktree"
    ):
        place(SideSpec(name="base", ref="HEAD~1"), clone / "bench" / "step.toml", tmp_path / "out")


def test_a_shallow_clone_is_said_to_lack_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_repository(tmp_path / "whole", sleep=0.0)
    git(tmp_path / "whole", "commit", "-q", "--allow-empty", "-m", "2")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path / 'whole'}", str(tmp_path / "shallow"))
    for said in _refusals(tmp_path / "shallow", monkeypatch, "HEAD~1"):
        assert "has no such commit, because this is a shallow clone: git fetch --unshallow" in said
    for said in _refusals(tmp_path / "whole", monkeypatch, "HEAD~9"):
        assert said.endswith("has no such commit")


@pytest.mark.parametrize("link", ["bench", "bench/new.toml"])
def test_an_experiment_is_not_copied_through_a_commits_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    """In the commit, a link is in place of a folder, or of a file that is not committed yet."""
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(elsewhere / "" if link == "bench" else elsewhere / "new.toml")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "link")
    (folder / link).unlink()
    (folder / "bench").mkdir(exist_ok=True)
    git(folder, "commit", "-qam", "none")
    experiment = folder / "bench" / "new.toml"
    experiment.write_text('[base]\nworkload = "mlp:small"\n')
    monkeypatch.chdir(folder)
    with pytest.raises(
        RequestError,
        match=r"bench/new\.toml leads elsewhere by a symbolic link: put the experiment into another",
    ):
        place(SideSpec(name="base", ref="HEAD~1"), experiment, tmp_path / "compare-1")
    assert not [*elsewhere.iterdir()]


@pytest.mark.parametrize("value", ["5", "{a = 1}", '"train.py:Mine"', "[[1]]", f"{'[' * 5000}{']' * 5000}"])
def test_an_experiment_that_is_wrong_is_placed_and_refused_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    experiment = folder / "step.toml"
    experiment.write_text(f"[axes]\nworkload = {value}\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "wrong")
    monkeypatch.chdir(folder)
    placed = place(SideSpec(name="base", ref="HEAD"), experiment, tmp_path / "compare-1")
    assert placed.experiment.read_text() == experiment.read_text()


@pytest.mark.parametrize("other", ["./", "../here", "path=."])
def test_one_folder_written_in_two_ways_is_one_side(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    base = parse_side("base", [str(here)])
    with pytest.raises(RequestError, match="both sides are the same"):
        check_apart(base, parse_side("new", [other]))
    check_apart(base, parse_side("new", [str(tmp_path)]))


def test_an_experiment_of_another_repository_is_measured_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the sides have a file of the same path: that would be another experiment."""
    project, other = tmp_path / "project", tmp_path / "other"
    begin_repository(project, sleep=0.0)
    begin_repository(other, sleep=0.0, experiment='[base]\nworkload = "mlp:small"\n')
    (other / "more.toml").write_text('[base]\nworkload = "mlp:small"\n')
    git(other, "add", "-A")
    git(other, "commit", "-qm", "more")
    monkeypatch.chdir(project)
    base, new = SideSpec(name="base", ref="fast"), SideSpec(name="new", path=".")
    for given in (other / "bench" / "step.toml", other / "more.toml"):
        for side, against in ((base, new), (new, base)):
            assert place(side, given, tmp_path / "out", against).experiment == given


def test_the_working_directorys_experiment_stays_where_both_sides_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if they have a file of the same path: that would be another experiment."""
    here, first, second = (tmp_path / name for name in ("here", "first", "second"))
    for folder in (here, first, second):
        begin_repository(folder, sleep=0.0, experiment='[base]\nworkload = "mlp:small"\n')
    (here / "more.toml").write_text('[base]\nworkload = "mlp:small"\n')
    git(here, "add", "-A")
    git(here, "commit", "-qm", "more")
    monkeypatch.chdir(here)
    base, new = SideSpec(name="base", path="../first"), SideSpec(name="new", path="../second")
    for given in (here / "bench" / "step.toml", here / "more.toml"):
        for side, against in ((base, new), (new, base)):
            assert place(side, given, tmp_path / "out", against).experiment == given


def test_an_experiment_of_either_side_is_each_sides_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, clone, tree = (tmp_path / name for name in ("project", "clone", "tree"))
    begin_repository(project, sleep=0.0)
    git(tmp_path, "clone", "-q", str(project), str(clone))
    git(project, "worktree", "add", "-q", str(tree), "HEAD")
    monkeypatch.chdir(tmp_path)
    here, there = (SideSpec(name=name, path=str(path)) for name, path in (("base", project), ("new", clone)))
    given, own = project / "bench" / "step.toml", Path("bench") / "step.toml"
    assert place(here, given, tmp_path / "out", there).experiment == given
    assert place(there, given, tmp_path / "out", here).experiment == clone / own
    monkeypatch.chdir(tree)
    placed = place(SideSpec(name="base", ref="fast"), given, tmp_path / "out", here)
    assert placed.folder is not None
    assert placed.experiment == placed.folder / own


def test_the_root_of_a_repository_is_named_for_a_folder_in_it_that_lacks_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, clone = tmp_path / "project", tmp_path / "clone"
    begin_repository(project, sleep=0.0)
    (project / "bench" / "step.toml").rename(project / "more.toml")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "moved")
    git(tmp_path, "clone", "-q", str(project), str(clone))
    monkeypatch.chdir(project / "bench")
    base = SideSpec(name="base", ref="main")
    own, given = "but both sides need the experiment", project / "more.toml"
    for path, root in ((".", ".."), (str(clone / "bench"), "../../clone")):
        new = SideSpec(name="new", path=path)
        with pytest.raises(RequestError) as raised:
            place(new, given, tmp_path / "out", base)
        assert str(raised.value) == (
            f"new (path={path}) has no more.toml, {own}: give the root of its repository, path={root}"
        )
        assert place(SideSpec(name="new", path=root), given, tmp_path / "out", base).experiment.is_file()
    (clone / "more.toml").unlink()
    with pytest.raises(RequestError, match=f"{own}$"):
        place(new, given, tmp_path / "out", base)


def test_two_folders_of_one_checkout_use_one_experiment_or_each_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be two implementations. Giving the root for both, as other sides are advised, would leave no change."""
    project, tree = tmp_path / "project", tmp_path / "tree"
    begin_repository(project, sleep=0.0)
    for name in ("first", "second"):
        (project / name).mkdir()
        (project / name / "own.toml").write_text("[base]\n")
    (project / "first" / "alone.toml").write_text("[base]\n")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "two")
    git(project, "worktree", "add", "-q", str(tree), "HEAD")

    def placed(experiment: str, *words: str) -> list[str]:
        base, new = (
            parse_side(name, [word] if word else [])
            for name, word in zip(("base", "new"), words, strict=True)
        )
        both = ((base, new), (new, base))
        made = [place(one, project / experiment, tmp_path / "out", other) for one, other in both]
        return [side.experiment.relative_to(tmp_path).as_posix() for side in made]

    monkeypatch.chdir(project)
    two = ("path=first", "path=second")
    assert placed("bench/step.toml", *two) == ["project/bench/step.toml"] * 2
    assert placed("first/own.toml", *two) == ["project/first/own.toml", "project/second/own.toml"]
    assert placed("bench/step.toml", f"path={tree}/first", "path=second") == [
        "tree/bench/step.toml",
        "project/bench/step.toml",
    ]
    assert placed("first/own.toml", f"path={tree}/second", "path=first") == [
        "tree/second/own.toml",
        "project/first/own.toml",
    ]
    missing = ", but both sides need the experiment: put a copy of it into each side's folder"
    for experiment, words, lacking in (
        ("first/alone.toml", two, "new (path=second) has no alone.toml"),
        ("bench/step.toml", ("path=first", "path=."), "base (path=first) has no bench/step.toml"),
        ("bench/step.toml", ("path=first", ""), "base (path=first) has no bench/step.toml"),
        ("first/alone.toml", ("path=first", ""), "base (path=first) has no first/alone.toml"),
    ):
        with pytest.raises(RequestError) as raised:
            placed(experiment, *words)
        assert str(raised.value) == lacking + missing, words
    monkeypatch.chdir(project / "second")
    assert placed("second/own.toml", "path=../first", "") == [
        "project/first/own.toml",
        "project/second/own.toml",
    ]


def test_folders_outside_of_any_repository_have_their_own_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base, new = (SideSpec(name=name, path=name) for name in ("base", "new"))
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.toml").touch()
    (tmp_path / "step.toml").touch()
    for given, expected in (("base/own.toml", "new/own.toml"), ("step.toml", "step.toml")):
        assert place(new, tmp_path / given, tmp_path / "out", base).experiment == tmp_path / expected


def test_one_commit_by_two_names_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured, as a gate on the main branch is; but a user who meant two commits is informed at once."""
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    monkeypatch.chdir(folder)

    def note(*words: str, clean: bool = True) -> str:
        if not clean:
            (folder / "other.py").touch()
        base, new = (
            place(parse_side(name, [word]), folder / "bench" / "step.toml", tmp_path / "out")
            for name, word in zip(("base", "new"), words, strict=True)
        )
        return same_code(base, new)

    said = "both sides are the same commit with the same settings, so any difference is chance"
    assert note("fast", "ref=HEAD") == note("fast", ".") == said
    assert note("fast", "set=base.local_batch=4") == ""
    assert note("fast", ".", clean=False) == ""


def test_two_folders_of_one_repository_are_not_said_to_be_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports are relative to the folder: `impl_a` and `impl_b` are two implementations."""
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    for name in ("impl_a", "impl_b"):
        (folder / name).mkdir()
        (folder / name / "step.py").write_text(f"NAME = '{name}'\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "two")
    experiment = tmp_path / "step.toml"
    experiment.write_text('[base]\nworkload = "mlp:small"\n')
    monkeypatch.chdir(folder)
    for words in (("path=impl_a", "path=impl_b"), ("ref=HEAD", "path=impl_a"), ("path=impl_b", "path=.")):
        base, new = (
            place(parse_side(name, [word]), experiment, tmp_path / "out")
            for name, word in zip(("base", "new"), words, strict=True)
        )
        assert base.commit == new.commit != ""
        assert same_code(base, new) == ""


def test_a_commit_of_folders_that_are_all_alike_is_not_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a commit could come from an archive: 10^9 files in a repository of 200 KB."""
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    monkeypatch.chdir(folder)
    tree = git(folder, "rev-parse", "HEAD^{tree}")
    for _ in range(9):
        entries = "".join(f"040000 tree {tree}\td{number}\n" for number in range(10))
        made = subprocess.run(["git", "mktree"], input=entries, check=True, capture_output=True, text=True)
        tree = made.stdout.strip()
    commit = git(folder, "commit-tree", tree, "-m", "many")
    spec = SideSpec(name="base", ref=commit)
    with pytest.raises(RequestError, match=r"more than 500,000 files and folders, .*give a checkout"):
        place(spec, folder / "bench" / "step.toml", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_commit_whose_listing_ends_early_is_not_taken_for_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_repository(tmp_path, sleep=0.0)
    commit, lost = git(tmp_path, "rev-parse", "HEAD", "HEAD:bench").split()
    (tmp_path / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    with pytest.raises(RequestError, match=r"git cannot list all files of .*: git fsck says what"):
        list(sides._sizes(tmp_path, commit))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="git cannot be run"):
        list(sides._sizes(tmp_path, commit))


def test_a_repository_that_has_git_wait_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sides, "_ASK_S", 0.5)
    os.mkfifo(folder / ".git" / "packed-refs")
    with pytest.raises(RequestError, match=r"git gave no answer about .* within 0.5 s: look at its \.git"):
        sides.commit_named(folder, "HEAD")
    (folder / ".git" / "packed-refs").unlink()
    (folder / ".git" / "HEAD").unlink()
    os.mkfifo(folder / ".git" / "HEAD")
    with pytest.raises(RequestError, match="git gave no answer"):
        place(SideSpec(name="base", ref="HEAD"), folder / "bench" / "step.toml", tmp_path / "out")


def test_git_that_gave_no_answer_once_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "_ASK_S", 0.5)
    unanswered = []
    run = subprocess.run

    def counted(*given: Any, **how: Any) -> Any:
        try:
            return run(*given, **how)
        except subprocess.TimeoutExpired:
            unanswered.append(given)
            raise

    monkeypatch.setattr(sides.subprocess, "run", counted)

    def is_asked_once(what: Callable[[], object]) -> None:
        unanswered.clear()
        with pytest.raises(
            RequestError, match=r"git gave no answer about .* within 0.5 s: look at its \.git"
        ):
            what()
        assert len(unanswered) == 1

    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    monkeypatch.chdir(folder)
    own = folder / "own.toml"  # not committed
    own.write_text('[base]\nworkload = "mlp:small"\n')
    base, new = SideSpec(name="base", ref="HEAD"), SideSpec(name="new", path=str(folder))
    (folder / ".git" / "index").unlink()
    os.mkfifo(folder / ".git" / "index")
    is_asked_once(
        lambda: [place(side, own, tmp_path / "out", other) for side, other in ((base, new), (new, base))]
    )
    strange = tmp_path / "strange"
    begin_repository(strange, sleep=0.0)
    (strange / ".git" / "HEAD").unlink()
    os.mkfifo(strange / ".git" / "HEAD")
    (folder / ".git" / "index").unlink()
    is_asked_once(lambda: place(base, strange / "bench" / "step.toml", tmp_path / "out"))
    is_asked_once(lambda: commits_between(strange, "HEAD~", "HEAD"))


def test_a_home_is_filled_in_where_a_shell_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for word in ("~/mine", "path=~/mine"):
        assert parse_side("base", [word]).path == str(tmp_path / "mine")
