"""The output of other programs is read with any bytes in it: names of files and folders need not be UTF-8."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from ddpbench.launch.interleave.sides import beside_this_code
from ddpbench.machine.identity import git_commit
from tests.repositories import git

PACKAGE = Path(__file__).parents[2] / "ddpbench"


def test_git_may_name_files_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With core.quotePath=false, as is usual where names are not ASCII, git prints their bytes."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"m\xfcller.txt")
    Path(name).write_text("a")
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "core.quotePath", "false")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-q", "-m", "one")
    Path(name).write_text("b")
    assert (git_commit() or "").endswith("+")


def test_a_repository_may_lie_in_a_folder_that_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"m\xfcller")
    folder.mkdir()
    monkeypatch.chdir(folder)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    _, new = beside_this_code(["ref=HEAD"])
    assert new.path == str(folder)


def test_every_program_that_is_read_as_text_may_print_other_bytes() -> None:
    strict = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and {"text", "encoding", "universal_newlines"} & (given := {each.arg for each in call.keywords})
        and {"capture_output", "stdout"} & given
        and "errors" not in given
    ]
    assert not strict
