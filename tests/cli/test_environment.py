"""Environment variables that libraries cannot read: one sentence before anything starts, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench import cli
from ddpbench.spec import PlannedCase
from tests.synthetic import case_of, write_run

LONG = "9" * 5_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SOURCE_DATE_EPOCH", "x"),
        ("SOURCE_DATE_EPOCH", ""),
        ("SOURCE_DATE_EPOCH", "1.5"),
        ("SOURCE_DATE_EPOCH", "99999999999999999999"),
        ("SOURCE_DATE_EPOCH", "999999999999"),
        ("SOURCE_DATE_EPOCH", LONG),
        ("COLUMNS", LONG),
        ("COLUMNS", "\N{SUPERSCRIPT TWO}"),
        ("LINES", "\N{SUPERSCRIPT TWO}"),
    ],
)
def test_a_variable_that_no_library_reads_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    for command in (["export", "none", "--format", "csv"], ["list"], ["sweep", "none.toml"]):
        assert cli.run(command) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"ddpbench: {name}=")
        assert "unset it" in printed.err
        assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("SOURCE_DATE_EPOCH", "0"), ("SOURCE_DATE_EPOCH", "1700000000"), ("COLUMNS", "x"), ("COLUMNS", "80")],
)
def test_another_is_not(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert cli.run(["list"]) == 0


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("SOURCE_DATE_EPOCH", "x", 2),
        ("SOURCE_DATE_EPOCH", "1700000000", 0),
        ("MPLBACKEND", "none of these", 0),
    ],
)
def test_a_command_ends_without_a_traceback(tmp_path: Path, name: str, value: str, code: int) -> None:
    """The backend would draw into windows; reports draw into files, without a window."""
    run = write_run(tmp_path / "run", [PlannedCase(case=case_of("single", 1))], rounds=2)
    done = subprocess.run(
        [sys.executable, "-m", "ddpbench", "report", str(run.path)],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert run.report.exists() == (code == 0)


def test_a_backend_that_there_is_is_kept() -> None:
    code = (
        "from ddpbench.matplotlib_folder import settle_matplotlib; settle_matplotlib()\n"
        "import matplotlib, os; print(matplotlib.get_backend(), os.environ['MPLBACKEND'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MPLBACKEND": "svg"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "svg svg\n"


def test_a_report_makes_no_home_directory(tmp_path: Path) -> None:
    """A service's user may have one that does not exist, and root could make it: neither fonts nor the cache do."""
    run = write_run(tmp_path / "run", [PlannedCase(case=case_of("single", 1))], rounds=2)
    ours = ("DDPBENCH_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, "-m", "ddpbench", "report", str(run.path)],
        env={**kept, "HOME": str(tmp_path / "nobody")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done
    assert run.report.exists()
    assert not (tmp_path / "nobody").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who can write in others' folders")
def test_root_makes_no_folders_in_another_users_home(tmp_path: Path) -> None:
    """The user could write neither in ~/.cache nor in ~/.config any more. Some ways to use sudo leave HOME."""
    ours = ("DDPBENCH_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    code = (
        "from ddpbench.cache import keep\n"
        "from ddpbench.matplotlib_folder import settle_matplotlib\n"
        "settle_matplotlib(); keep('a', b'b', 'c')\n"
        "import matplotlib; print(matplotlib.get_cachedir())"
    )
    os.chown(tmp_path, 65534, 65534)
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "ddpbench-matplotlib-" in ended.stdout
    assert list(tmp_path.iterdir()) == []
