"""The pages of launches by another launcher: none is left, and the next launch removes those of killed sweeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddpbench.errors import LaunchError
from ddpbench.records import RunDir
from ddpbench.records.job_key import SECRET_VARIABLE
from ddpbench.runtime import launched
from ddpbench.runtime.launched import LaunchedRanks
from tests.synthetic import case_of

CASE = case_of("ddp", 2, launcher="torchrun")
HOLDING = """
import sys, time
from pathlib import Path
from ddpbench.runtime.launched import LaunchedRanks
from tests.synthetic import case_of
ranks = LaunchedRanks(case_of("ddp", 2, launcher="torchrun"), Path("log"))
(ranks._folder / "ranks.json").write_text("{}")
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
        assert [sorted(path.name for path in page.iterdir()) for page in pages] == [["page", "ranks.json"]]
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
    young.mkdir()
    aim = temporary / "aim"
    aim.mkdir()
    old(aim)
    link = temporary / "ddpbench-page-link"
    link.symlink_to(aim)
    file = temporary / "ddpbench-page-file"
    file.write_bytes(b"")
    old(file)
    pipe = temporary / "ddpbench-page-pipe"
    os.mkfifo(pipe)
    old(pipe)
    all_of_them = {young, aim, link, file, pipe}
    if os.geteuid() == 0:
        other = temporary / "ddpbench-page-other"
        other.mkdir()
        os.chown(other, 65534, 65534)
        all_of_them.add(old(other))
    with LaunchedRanks(CASE, temporary / "log"):
        assert {path for path in all_of_them if path.exists()} == all_of_them


def test_what_ranks_are_told_lies_where_nobody_else_can_put_a_file(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user who sees a launch's files appear could take the next one's name, and so make each launch fail."""
    monkeypatch.setattr(launched.subprocess, "Popen", _refuse)
    directory = RunDir(temporary / "run").launch(CASE.case_id, "measure", 0)
    directory.path.mkdir(parents=True)
    with LaunchedRanks(CASE, temporary / "log") as ranks:
        with pytest.raises(LaunchError, match="cannot be started"):
            ranks.launch([{}, {}], directory)
        made = [path for path in temporary.rglob("*") if path.name not in ("run", "log")]
        made = [path for path in made if not path.is_relative_to(temporary / "run")]
        (folder,) = (path for path in made if path.is_dir())
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.parent for path in made} == {temporary, folder}
        assert sorted(path.name for path in folder.iterdir()) == ["page", "ranks.json"]


def _refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_launchs_secret_is_in_a_private_folder_and_not_in_its_launchers_environment(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher may pass its environment on where others see it."""
    started: list[dict[str, str]] = []

    def start(_line: list[str], *, env: dict[str, str], **_: object) -> None:
        started.append(env)
        raise OSError(2, "not started by this test")

    monkeypatch.setattr(launched, "subprocess", SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL))
    with LaunchedRanks(CASE, temporary / "log") as ranks:
        with pytest.raises(LaunchError):
            ranks.launch([{SECRET_VARIABLE: "of this launch"}] * 2, RunDir(temporary).launch("a", "proof"))
        table = json.loads((ranks._folder / "ranks.json").read_text(encoding="utf-8"))
        assert [rank[SECRET_VARIABLE] for rank in table["ranks"]] == ["of this launch"] * 2
        assert ranks._folder.stat().st_mode & 0o777 == 0o700
    assert SECRET_VARIABLE not in started[0]


def test_a_launcher_runs_compiled_code_from_no_folder_that_others_can_make(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own choice is `torchinductor_USER` in the temporary directory."""
    started: list[dict[str, str]] = []

    def start(_line: list[str], *, env: dict[str, str], **_: object) -> None:
        started.append(env)
        Path(env["TORCHINDUCTOR_CACHE_DIR"], "aotautograd").mkdir(parents=True)  # as torch does
        raise OSError(2, "not started by this test")

    monkeypatch.setattr(launched, "subprocess", SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL))
    for given in (None, str(temporary / "own")):
        if given is not None:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", given)
        else:
            monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        with LaunchedRanks(CASE, temporary / "log") as ranks, pytest.raises(LaunchError):
            ranks.launch([{}] * 2, RunDir(temporary / "run").launch("a", "proof"))
    assert [env["TORCHINDUCTOR_CACHE_DIR"] for env in started] == [
        str(temporary / "run/.torchinductor"),
        str(temporary / "own"),
    ]
    assert not (temporary / "run/.torchinductor").exists()
    assert (temporary / "own").exists()
