"""The pages of launches by another launcher: none is left, and those of killed sweeps go with the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ddpbench.machine.launched import LaunchedRanks
from tests.synthetic import case_of

CASE = case_of("ddp", 2, launcher="torchrun")
HOLDING = """
import sys, time
from pathlib import Path
from ddpbench.machine.launched import LaunchedRanks
from tests.synthetic import case_of
ranks = LaunchedRanks(case_of("ddp", 2, launcher="torchrun"), Path("log"))
Path(ranks._page_file.name + ".json").write_text("{}")
print("there", flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def old(path: Path) -> Path:
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    return path


def test_a_killed_sweeps_page_goes_with_the_next_and_a_living_ones_stays(temporary: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "there\n"
        pages = sorted(temporary.iterdir())
        assert [path.suffix for path in pages] == ["", ".json"]
        old(pages[0])
        with LaunchedRanks(CASE, temporary / "log"):
            assert all(path.exists() for path in pages)  # its sweep is at work
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert all(path.exists() for path in pages)
    finally:
        holder.kill()
        holder.communicate()
    with LaunchedRanks(CASE, temporary / "log"):
        assert not any(path.exists() for path in pages)
    assert not list(temporary.iterdir())


def test_what_may_be_somebody_elses_stays(temporary: Path) -> None:
    young = temporary / "ddpbench-page-young"
    young.write_bytes(b"")
    aim = temporary / "aim"
    aim.write_bytes(b"")
    old(aim)
    link = temporary / "ddpbench-page-link"
    link.symlink_to(aim)
    folder = temporary / "ddpbench-page-folder"
    folder.mkdir()
    old(folder)
    pipe = temporary / "ddpbench-page-pipe"
    os.mkfifo(pipe)
    old(pipe)
    with LaunchedRanks(CASE, temporary / "log"):
        assert {path for path in (young, aim, link, folder, pipe) if path.exists()} == {
            *(young, aim, link, folder, pipe)
        }
