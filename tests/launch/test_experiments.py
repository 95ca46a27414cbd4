"""The places in which experiments are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpbench.cli import run as command
from ddpbench.launch.experiments import find_experiment, known_experiments, shipped_experiments
from ddpbench.launch.interleave.sides import is_side_word, parse_side


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
@pytest.mark.parametrize("owner", [0, 65534, 12345])
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_another_users_experiments_in_a_shared_folder_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int
) -> None:
    """Such files would run that user's code: `cd /tmp; ddpbench sweep quick`."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "experiments"
    own.mkdir()
    (own / "quick.toml").write_text("", encoding="utf-8")
    tmp_path.chmod(mode)
    os.chown(tmp_path, owner, owner)
    assert find_experiment("quick") == Path("experiments/quick.toml")  # the user's file
    os.chown(own, 65534, 65534)
    assert find_experiment("quick") == shipped_experiments() / "quick.toml"
    tmp_path.chmod(0o755)
    assert known_experiments()["quick"] == Path(
        "experiments/quick.toml"
    )  # only the user can have put it there
    own.rename(tmp_path / "aim")
    own.symlink_to("aim")
    tmp_path.chmod(mode)
    os.chown(own, 65534, 65534, follow_symlinks=False)
    assert find_experiment("quick") == shipped_experiments() / "quick.toml"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_another_users_path_is_not_taken_for_an_experiment_or_a_commit_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its code would be run: `cd /tmp; ddpbench sweep quick`, if another user has put a run directory `quick` there."""
    monkeypatch.chdir(tmp_path)
    for name in ("quick", "main"):
        (tmp_path / name).mkdir()
    for name in ("experiment.toml", "submission.json"):
        (tmp_path / "quick" / name).write_text("{}", encoding="utf-8")
    (tmp_path / "strategies").write_text("", encoding="utf-8")
    tmp_path.chmod(0o1777)
    assert find_experiment("strategies") == Path("strategies")  # the user's folder
    assert parse_side("base", ["main"]).path == "main"
    assert is_side_word("main")
    for name in ("quick", "main", "strategies"):
        os.chown(tmp_path / name, 65534, 65534)
    for name in ("quick", "strategies"):
        assert find_experiment(name) == shipped_experiments() / f"{name}.toml"
    assert parse_side("base", ["main"]).ref == "main"
    assert not is_side_word("main")
    assert command(["submit", "quick", "--nodes", "1", "--dry-run"]) == 0
    assert "quick-1" in capsys.readouterr().out
    assert find_experiment("./strategies") == Path("strategies")  # a user who writes the path means it
    assert parse_side("base", ["./main"]).path == "./main"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_another_users_file_in_an_open_folder_of_experiments_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "experiments"
    own.mkdir()
    own.chmod(0o777)
    (own / "quick.toml").write_text("", encoding="utf-8")
    assert find_experiment("quick") == Path("experiments/quick.toml")
    os.chown(own / "quick.toml", 65534, 65534)
    assert find_experiment("quick") == shipped_experiments() / "quick.toml"


def test_on_a_disk_that_shows_other_owners_ones_own_files_are_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a bind mount, or with a server that maps users, all files have one owner, who is not the user who writes."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "experiments"
    own.mkdir()
    (own / "quick.toml").write_text("", encoding="utf-8")
    tmp_path.chmod(0o777)
    monkeypatch.setattr("ddpbench.planted.os.geteuid", lambda: 4321)
    monkeypatch.setattr("ddpbench.planted.shown_as", lambda folder: os.fstat(folder).st_uid)
    for path in (tmp_path, own, own / "quick.toml") if os.getuid() == 0 else ():
        os.chown(path, 1234, 1234)
    assert find_experiment("quick") == Path("experiments/quick.toml")


def test_what_is_no_file_is_no_experiment_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder packed by another user may hold a pipe, a device, a folder and an endless file."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "experiments"
    own.mkdir()
    os.mkfifo(own / "pipe.toml")
    (own / "zero.toml").symlink_to("/dev/zero")
    (own / "folder.toml").mkdir()
    with (own / "long.toml").open("wb") as file:
        file.truncate(1 << 40)
    (own / "deep.toml").write_text(f"a = {'[' * 5000}{']' * 5000}")
    (own / "key.toml").write_text("a." * 64 + "b = 1")
    (own / "word.toml").write_text("question = '" + "a." * 64 + "'")
    assert not {"pipe", "zero", "folder"} & known_experiments().keys()
    assert command(["list"]) == 0
    listed = capsys.readouterr().out
    assert "long " in listed
    assert listed.count("(cannot be read: ") == 3
    page = " ".join(listed.split())
    assert "(cannot be read: it is too large; it must be 1 MiB at most)" in page
    assert "(cannot be read: it has a key with too many parts; a key must have 64 at most)" in page
