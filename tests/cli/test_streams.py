"""Closed standard streams: nothing else gets their descriptors, and commands do their work."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddpbench.cli import run

CLOSED = [(1,), (2,), (0, 1, 2)]


@pytest.mark.parametrize("closed", CLOSED)
def test_no_file_becomes_a_standard_stream_that_was_closed(closed: tuple[int, ...]) -> None:
    code = (
        "import os, sys; from ddpbench.cli import main; import ddpbench.cli as cli\n"
        "def run(argv):\n    print('said'); print('told', file=sys.stderr); return os.open('/', os.O_RDONLY)\n"
        "cli.run = run; main()"
    )
    shut = " ".join(f"{one}>&-" for one in closed)
    ended = subprocess.run(["sh", "-c", f'exec "$0" -c "$1" {shut}', sys.executable, code], check=False)
    assert ended.returncode > 2  # of the file that was opened, its descriptor


def test_tables_are_printed_to_a_closed_terminal() -> None:
    line = ["sh", "-c", 'exec "$0" -m ddpbench list >&-', sys.executable]
    ended = subprocess.run(line, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_error_without_end_is_told_without_its_middle(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--figures", "png," + "x" * 50_000, "nowhere"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ddpbench: ")
    assert " ... " in told
    assert len(told) < 3_100
