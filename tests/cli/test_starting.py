"""Ctrl-C before there is anything to interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench.cli import run
from ddpbench.errors import InUseError

_PROGRAM = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "ddpbench.cli":
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(10_000):  # Python's own handler comes between two instructions
                pass

sys.meta_path.insert(0, Interrupts())
signal.signal(signal.SIGINT, {handler})
from ddpbench.__main__ import main
sys.argv = ["ddpbench", "--version"]
main()
"""


@pytest.mark.parametrize(
    ("handler", "code", "message"),
    [("signal.default_int_handler", -signal.SIGINT, ""), ("signal.SIG_IGN", 0, "ddpbench ")],
    ids=["as usual", "ignored, as under nohup"],
)
def test_ctrl_c_while_the_command_line_is_imported_ends_without_a_traceback(
    handler: str, code: int, message: str
) -> None:
    program = _PROGRAM.format(handler=handler)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert ended.stdout.startswith(message)


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    printed = capsys.readouterr().out
    assert "usage: ddpbench" in printed
    assert "exit codes" in printed


def test_cores_that_another_command_uses_end_a_sweep_with_a_code_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_use(*_: object) -> None:
        raise InUseError("another ddpbench command is using core 0")

    monkeypatch.setattr("ddpbench.carry_out", in_use)
    assert run(["sweep", "quick", "--out", str(tmp_path / "run")]) == 3
    assert capsys.readouterr().err.endswith("ddpbench: another ddpbench command is using core 0\n")


_INHERITS = """
import os, signal, subprocess, sys
from ddpbench import cli

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
if sys.argv[1] == "child":
    cli._function = lambda _: lambda _: subprocess.run(["sh", "-c", "exit 3"]).returncode
else:
    cli._function = lambda _: lambda _: os.kill(os.getpid(), signal.SIGTERM) or 0
sys.exit(cli.run(["list"]))
"""


@pytest.mark.parametrize(("what", "code"), [("child", 3), ("interrupt", 130)])
def test_signals_that_the_parent_process_ignored_or_blocked_come(what: str, code: int) -> None:
    """Exit codes of children are known, and the command can be interrupted."""
    ended = subprocess.run([sys.executable, "-c", _INHERITS, what], check=False, timeout=60)
    assert ended.returncode == code


def test_without_proc_a_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report would say that the run directory has no plan."""
    monkeypatch.setattr("ddpbench.cli._PROC", tmp_path / "missing")
    assert run(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("ddpbench: /proc is not mounted here; mount it with: ")
