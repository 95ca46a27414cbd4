"""A job that Slurm refuses: what is said, with programs in Slurm's place that refuse it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpbench.cli import run

PROGRAMS = {
    "sbatch": "echo 'sbatch: error: Invalid account' >&2; exit 1",
    "sinfo": "echo 'debug*|4|infinite'",
    "squeue": "true",
    "scontrol": "true",
}


def test_a_refused_script_that_was_removed_can_be_read_by_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, does in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    out = tmp_path / "run"
    assert run(["submit", "quick", "--nodes", "1", "--out", str(out)]) == 2
    message = capsys.readouterr().err
    assert "Invalid account" in message
    assert message.endswith("(the script was removed; to see it, add --dry-run)\n")
    assert not out.exists()
