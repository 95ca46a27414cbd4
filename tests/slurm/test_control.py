"""The environment that sbatch gets: no variable overrides the options in a script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddpbench.launch.slurm import control
from ddpbench.launch.slurm.control import _place, environment, would_run


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=00:10:00\n#SBATCH --job-name=mine\n")
    return path


def test_variables_change_no_option_that_a_script_has(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    for name in ("SBATCH_TIMELIMIT", "SBATCH_JOB_NAME", "SBATCH_ARRAY_INX", "SBATCH_OUTPUT", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")
    monkeypatch.setenv("SLURM_CONF", "/etc/here.conf")
    found = environment(script)
    assert {name for name in found if name.startswith(("SBATCH_", "SLURM_"))} == {
        "SBATCH_ACCOUNT",
        "SLURM_CONF",
    }


def test_a_script_is_the_same_by_whatever_name_it_is_called(tmp_path: Path, script: Path) -> None:
    (tmp_path / "home").symlink_to(tmp_path)
    assert _place(str(tmp_path / "home" / script.name)) == _place(script)


@pytest.mark.parametrize(
    ("words", "partition"),
    [
        (
            "sbatch: Job 7 to start at 2026-01-02T03:04:05 using 2 processors on nodes n1 in partition long\n",
            "long",
        ),
        ("sbatch: Job 7 to start at 2026-01-02T03:04:05 a using 2 processors on n1\n", ""),
    ],
)
def test_sbatch_says_which_partition_a_job_would_have(
    words: str, partition: str, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(argv: list[str], _: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 0, "", words)

    monkeypatch.setattr(control, "_asked", asked)
    assert would_run(script) == partition
