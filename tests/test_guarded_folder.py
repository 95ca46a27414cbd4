"""A temporary folder goes with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpbench.guarded_folder import GuardedFolder
from tests.processes import AS_IN_A_TERMINAL, python_path

ROOT = Path(__file__).parents[1]
WAITING = """
import time
from ddpbench.guarded_folder import GuardedFolder
with GuardedFolder("ddpbench-of-a-test-") as folder:
    (folder / "more").mkdir()
    (folder / "more" / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""
SUITE = """
import time

def test_step(ddp_benchmark, request):
    from ddpbench.pytest_plugin import _bench
    print(_bench(request.config).folder, flush=True)
    time.sleep(600)
"""
ENDS = [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {"PYTHONPATH": python_path(ROOT), "TMPDIR": str(folder)}


@contextmanager
def begun(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process whose first line that names a folder below `folder` is still to be read."""
    process = subprocess.Popen(
        [*AS_IN_A_TERMINAL, sys.executable, *words],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def folder_of(process: subprocess.Popen[str], of: Path) -> Path:
    assert process.stdout is not None
    return next(Path(line.strip()) for line in process.stdout if line.startswith(str(of)))


def is_so(condition: Callable[[], bool], within_s: float = 15.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("number", ENDS)
def test_it_is_gone_when_its_process_was_ended(tmp_path: Path, number: signal.Signals) -> None:
    with begun(tmp_path, "-c", WAITING) as process:
        folder = folder_of(process, tmp_path)
        assert folder.is_dir()
        process.send_signal(number)
        process.wait(10)
        assert is_so(lambda: not folder.exists())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", ENDS[:3])
def test_a_suite_that_is_ended_leaves_no_folder(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "test_steps.py").write_text(SUITE)
    words = ("-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "test_steps.py")
    with begun(tmp_path, *words) as process:
        folder = folder_of(process, tmp_path)
        assert folder.is_dir()
        process.send_signal(number)
        process.wait(10)
        assert is_so(lambda: not folder.exists())


def test_it_is_gone_with_its_context_and_so_is_its_guard() -> None:
    guarded = GuardedFolder("ddpbench-of-a-test-")
    with guarded as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x")
        guard = guarded._guard
        assert guard is not None
        assert guard.poll() is None
    assert not folder.exists()
    assert guard.returncode is not None


def test_what_cannot_be_removed_at_once_is_left_to_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpbench.guarded_folder.TemporaryFolder.remove", lambda *_: False)
    with GuardedFolder("ddpbench-of-a-test-") as folder:
        (folder / "file").write_text("x")
    assert is_so(lambda: not folder.exists())
