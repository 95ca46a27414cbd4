"""Removals are limited to what is this user's, or was made by this process, not what only has its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpbench.errors import OutputError
from ddpbench.records import RunDir
from ddpbench.records.held import new_folder
from ddpbench.records.rundir import make_dir
from ddpbench.removal import (
    ExchangedError,
    Identity,
    TemporaryFolder,
    is_own_folder,
    make,
    remove_in,
    remove_tree,
)
from ddpbench.text_safety import unprintable
from tests.exchanges import Exchanging

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other users")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a folder with a file in a folder, a link to another folder, and a pipe; return it."""
    (tmp_path / "tree/sub/deep").mkdir(parents=True)
    (tmp_path / "tree/sub/file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/thesis.txt").touch()
    (tmp_path / "tree/sub/link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "tree/pipe")
    return tmp_path / "tree"


def names(folder: Path) -> set[str]:
    """Return the names of everything below a folder."""
    return {path.name for path in folder.rglob("*")}


def test_a_folder_of_ones_own_goes_with_all_that_is_in_it_and_no_link_is_followed(
    tree: Path, tmp_path: Path
) -> None:
    assert remove_tree(tree)
    assert names(tmp_path) == {"elsewhere", "thesis.txt"}
    assert remove_tree(tree)  # no file has its name


def test_a_link_of_the_name_is_left(tree: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tree)
    before = names(tmp_path)
    assert not remove_tree(link)
    assert not remove_tree(tree / "pipe")
    assert names(tmp_path) == before


@as_root
def test_what_another_user_owns_is_left_with_all_that_is_in_it_and_said(
    tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.chown(tree / "sub", NOBODY, NOBODY)
    (tree / "theirs").touch()
    os.chown(tree / "theirs", NOBODY, NOBODY)
    assert not remove_tree(tree)
    assert names(tree) == {"sub", "deep", "file", "link", "theirs"}
    said = capfd.readouterr().err
    assert f"ddpbench: {tree}/sub was not removed, because another user may have put it there" in said
    assert f"ddpbench: {tree}/theirs was not removed" in said
    os.chown(tree, NOBODY, NOBODY)
    assert not remove_tree(tree)
    assert f"ddpbench: {tree} was not removed" in capfd.readouterr().err


@as_root
def test_the_name_of_what_another_user_owns_does_nothing_on_a_terminal(
    tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs = tree / "x\x1b]0;title\x07\nddpbench: all is well"
    theirs.touch()
    os.chown(theirs, NOBODY, NOBODY)
    assert not remove_tree(tree)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"ddpbench: {tree}/x")
    assert not unprintable(line)


@as_root
def test_on_a_disk_that_shows_another_owner_ones_own_are_known(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in [tree, *tree.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    monkeypatch.setattr("ddpbench.planted.shown_as", lambda _: NOBODY)
    assert remove_tree(tree)


def test_another_folder_than_the_one_that_was_made_is_left(tmp_path: Path) -> None:
    made = make(tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "away")
    (tmp_path / "made").mkdir()
    (tmp_path / "made/thesis.txt").touch()
    assert not remove_tree(tmp_path / "made", made=made)
    remove_in(tmp_path / "made", made, lambda _: True)
    assert names(tmp_path) == {"made", "away", "thesis.txt"}
    assert remove_tree(tmp_path / "away", made=made)


def test_of_a_folder_in_which_others_may_write_nobody_knows_who_put_it_there(tree: Path) -> None:
    tree.chmod(0o770)
    before = names(tree)
    assert not remove_tree(tree, private=True)
    assert not is_own_folder(tree)
    assert names(tree) == before
    tree.chmod(0o755)
    assert is_own_folder(tree)
    assert remove_tree(tree, private=True)


def test_a_temporary_folder_that_was_exchanged_is_left(tmp_path: Path) -> None:
    folder = TemporaryFolder("x-", tmp_path)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.path.rename(tmp_path / "away")
    (folder.path / "results").mkdir(parents=True)
    folder.remove()
    assert names(tmp_path) == {folder.path.name, "away", "results"}


@pytest.mark.parametrize("other", ["full", "old", "link", "theirs"])
def test_a_folder_that_takes_a_new_ones_place_is_told_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """It contains something, is older, is a link or is another user's."""
    (tmp_path / "aim").mkdir()
    folder = tmp_path / other
    if other == "link":
        folder.symlink_to(tmp_path / "aim")
    else:
        folder.mkdir()
    if other == "full":
        (folder / "thesis.txt").touch()
    if other == "old":
        os.utime(folder, (0, 0))
    if other == "theirs":
        if os.geteuid() != 0:
            pytest.skip("only root can give folders to other users")
        os.chown(folder, NOBODY, NOBODY)
    tmp_path.chmod(0o777)
    monkeypatch.setattr(os, "mkdir", Exchanging(tmp_path, "new", other))
    with pytest.raises(ExchangedError, match="another folder replaced it while it was being made"):
        make(tmp_path / "new")
    assert (tmp_path / "new").exists()


@as_root
def test_in_another_users_folder_a_new_one_is_proved_to_be_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    assert make(tmp_path / "mine") == Identity.of((tmp_path / "mine").stat())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").touch()
    monkeypatch.setattr(os, "mkdir", Exchanging(tmp_path, "new", "full"))
    with pytest.raises(ExchangedError):
        make(tmp_path / "new")


def test_folders_made_on_the_way_are_proved_to_be_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    tmp_path.chmod(0o777)
    monkeypatch.setattr(os, "mkdir", Exchanging(tmp_path, "way", "mine"))
    with pytest.raises(ExchangedError) as caught, new_folder(tmp_path / "way/deep"):
        pass
    assert caught.value.filename == str(tmp_path / "way")
    assert names(tmp_path) == {"way", "thesis.txt", "mine"}
    assert (tmp_path / "way/thesis.txt").exists()


def test_what_takes_the_place_of_a_folder_made_on_the_way_is_not_removed(tmp_path: Path) -> None:
    def fails() -> None:
        (tmp_path / "way").rename(tmp_path / "away")
        (tmp_path / "way").mkdir()
        raise OutputError("no")

    with pytest.raises(OutputError), new_folder(tmp_path / "way"):
        fails()
    assert names(tmp_path) == {"way", "away"}


def test_a_run_directory_that_was_exchanged_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that fails removes what it has made: not an earlier run that has the name now."""
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    for name in ("plan.json", "experiment.toml", "machine.json"):
        (earlier / name).touch()
    run = RunDir(tmp_path / "run")
    made = run.create()
    run.path.rename(tmp_path / "away")
    earlier.rename(run.path)
    made.remove_files(run.plan, run.experiment, run.machine)
    made.remove()
    assert names(run.path) == {"plan.json", "experiment.toml", "machine.json"}
    tmp_path.chmod(0o777)
    monkeypatch.setattr(os, "mkdir", Exchanging(tmp_path, "next", "run"))
    with pytest.raises(ExchangedError):
        make_dir(tmp_path / "next", lambda _: True)
    assert names(tmp_path / "next") == {"plan.json", "experiment.toml", "machine.json"}
