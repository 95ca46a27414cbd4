"""The lock of tests that measure: its name is in a folder that every user can write to."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpbench.pytest_plugin import _one_at_a_time

NAME = f"ddpbench-pytest-{os.getuid()}.lock"


def _foreign(path: Path) -> None:
    path.touch(mode=0o666)
    os.chown(path, 12_345, 12_345)


def _link(path: Path) -> None:
    path.with_name("target").touch()
    path.symlink_to(path.with_name("target"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_tests_that_measure_hold_one_lock(folder: Path) -> None:
    with _one_at_a_time():
        assert not is_free(folder / NAME)
    assert is_free(folder / NAME)
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(
            _foreign, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give it away")
        ),
        _link,
        os.mkfifo,
        Path.mkdir,
    ],
)
def test_a_name_that_another_user_has_taken_is_passed_over(
    folder: Path, take: Callable[[Path], object]
) -> None:
    """Its owner could hold the lock for ever."""
    take(folder / NAME)
    second = folder / NAME.replace(".lock", "-1.lock")
    with _one_at_a_time():
        if (folder / NAME).is_file():
            assert is_free(folder / NAME)
        assert not is_free(second)


def test_without_any_name_nothing_waits(folder: Path) -> None:
    (folder / NAME).mkdir()
    for number in range(1, 100):
        (folder / NAME.replace(".lock", f"-{number}.lock")).mkdir()
    with _one_at_a_time():
        assert all(path.is_dir() for path in folder.iterdir())
