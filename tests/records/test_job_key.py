"""The key of a job's slots: who has it, and the messages if it is missing or readable by others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpbench.errors import RequestError
from ddpbench.records import RunDir
from ddpbench.records.job_key import job_key, make_job_key

GIVEN = {"DDPBENCH_KEY": "sixteen letters!"}


def test_a_plans_key_is_its_owners_alone_and_stays(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    make_job_key(run)
    key, problem = job_key(run, {})
    assert (len(key), problem) == (32, "")
    assert run.job_key.stat().st_mode & 0o777 == 0o600
    make_job_key(run)
    assert job_key(run, {})[0] == key
    other = RunDir(tmp_path / "other")
    other.path.mkdir()
    make_job_key(other)
    assert job_key(other, {})[0] != key


def test_one_in_the_environment_goes_first_and_is_long_enough(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    make_job_key(run)
    assert job_key(run, GIVEN)[0] != job_key(run, {})[0]
    with pytest.raises(RequestError, match="DDPBENCH_KEY has 3 characters: give at least 16"):
        job_key(run, {"DDPBENCH_KEY": "abc"})


def test_a_key_that_is_missing_empty_or_open_is_told(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key, problem = job_key(run, {})
    assert key == b""
    assert problem == f"{run.job_key} cannot be read (No such file or directory)"
    run.job_key.write_text("\n", encoding="ascii")
    assert job_key(run, {}) == (b"", f"{run.job_key} is empty")
    run.job_key.write_text("0123456789abcdef", encoding="ascii")
    run.job_key.chmod(0o644)
    key, problem = job_key(run, {})
    assert key
    assert "other users can read" in problem
    assert "chmod 600" in problem


def test_another_users_key_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    make_job_key(run)
    monkeypatch.setattr(os, "geteuid", lambda: run.job_key.stat().st_uid + 1)
    assert job_key(run, {})[1] == f"{run.job_key} is another user's"
