"""A memory limit (ulimit -v): one sentence that names memory, no traceback, no endless wait."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from ddpbench import cli

COMMANDS = (["list"], ["report", "run"], ["noise", "--strategy", "ddq"], ["compare", "a", "b"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("mib", [200, 400])
def test_a_small_address_space_is_refused(command: list[str], mib: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddpbench", *command],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)),
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"memory is limited to {mib} MiB of address space" in done.stderr
    assert "ulimit -v" in done.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("libx.so.1: failed to map segment from shared object")], ids=repr
)
def test_memory_that_runs_out_later_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("ddpbench.cli.list._run", fail)
    assert cli.run(["list"]) == 1
    assert capsys.readouterr().err.startswith("ddpbench: memory ran out; raise the limit with ulimit -v")


def test_an_import_that_fails_for_another_reason_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise ImportError("no module named x")

    monkeypatch.setattr("ddpbench.cli.list._run", fail)
    with pytest.raises(ImportError, match="no module named x"):
        cli.run(["list"])
