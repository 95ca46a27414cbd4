"""Unusable flags, paths and files: exit code 2, one sentence, nothing left behind; and clean printed texts."""

from __future__ import annotations

import errno
import io
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

import ddpbench
from ddpbench.analysis.read.status import resume_command
from ddpbench.cli import run
from ddpbench.cli.lines import say, show
from ddpbench.cli.progress import BarListener, LineListener
from ddpbench.errors import LaunchError, OutputError
from ddpbench.launch.sweep import sweep
from ddpbench.records import RunDir
from ddpbench.records.rundir import checked_name
from ddpbench.spec import Case, PlannedCase
from ddpbench.text_safety import unprintable

MANY = "9" * 400
TOO_MANY = "9" * 5000
LONG = "n" * 300


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run([str(one) for one in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err) < 400
    return printed.err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["allocation", "nowhere", "--queue-wait", ""], "--queue-wait"),
        (["allocation", "nowhere", "--out", ""], "--out"),
        (["compare", "--interleave", "quick", "--new", "env=A=1", "--total", ""], "--total"),
        (["export", "nowhere", "--format="], "--format"),
        (["submit", "quick", "--partition", ""], "--partition"),
        (["compare", "a", ""], "RUN"),
        (["sweep", ""], "EXPERIMENT"),
    ],
)
def test_an_empty_text_is_no_value(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(arguments)
    assert (
        f"argument {name}: the value is empty: give one, or leave the option out" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "--hang-timeout", "nan"], "--hang-timeout: nan given; must be 1 s to 1 day"),
        (["verify", "--hang-timeout", "0"], "--hang-timeout: 0 given; must be 1 s to 1 day"),
        (
            ["verify", "--world-size", "1", TOO_MANY],
            "--world-size: a whole number of about 5,000 digits given; must be",
        ),
        (["noise", "--rounds", "999999999"], "--rounds: 999999999 given; must be a whole number, 3 to 1,000"),
        (
            ["noise", "--rounds", "2"],
            "--rounds: 2 given; must be a whole number, 3 to 1,000: fewer give no interval",
        ),
        (["noise", "--world-size", "-1"], "--world-size: -1 given; must be a whole number, 1 to 4,096"),
        (["allocation", "nowhere", "--queue-wait", "x"], "--queue-wait: 'x' is not RANKS=TIME, such as 8=2h"),
        (["compare", "a", "b", "--total", "1 s"], "--turns and --out need --interleave"),
        (["noise", "--total", "soon"], "--total: 'soon' given; invalid duration 'soon'"),
        (["noise", "--total", "0 s"], "--total: '0 s' given; must be above 0 s and up to 365 days"),
        (["noise", "--total", "1e400 s"], "--total: '1e400 s' given; must be above 0 s and up to 365 days"),
        (
            ["compare", "--interleave", "quick", "--new", "env=A=1", "--total", "1e400 s"],
            "--total: '1e400 s' given; must be 1 s to 30 days: no comparison takes that long",
        ),
        (
            ["bisect", "quick", "a", "b", "--total", "0.0001 s"],
            "--total: '0.0001 s' given; must be 1 s to 30",
        ),
        (["noise", "--resolve", "0%"], "--resolve: the change must be above 0"),
        (["noise", "--resolve", "300%"], "--resolve: '300%': give a share such as 3% or 0.03, below 100%"),
        (["sweep", "quick", "--resolve", "0"], "--resolve: the change must be above 0, such as 3%"),
        (["sweep", "quick", "--resolve", "300%"], "--resolve: '300%': give a share such as 3% or 0.03"),
        (["sweep", "quick", "--resolve", "nan"], "--resolve: 'nan': give a share such as 3% or 0.03"),
        (["sweep", "quick", "--total", "-3"], "--total: -3 given; must be 1 s to 30 days"),
        (["sweep", "quick", "--total", "soon"], "--total: 'soon' given; invalid duration 'soon'"),
        (["noise", "--measured", "inf"], "--measured: inf given; must be 1 ms to 1 h"),
        (
            ["plan", "quick", "--nodes", "a,b", "--ranks-per-node", MANY],
            "--ranks-per-node: a whole number of about",
        ),
        (
            ["plan", "quick", "--nodes", "a,b", "--ranks-per-node", "4000"],
            "--nodes x --ranks-per-node: 8000 given",
        ),
        (["plan", "quick", "--nodes", "a,b", "--port", TOO_MANY], "must be a whole number, 1 to 65,535"),
        (
            ["profile", "gpt:nano", "--steps", MANY],
            "--steps: a whole number of about 400 digits given; must be",
        ),
        (
            ["profile", "gpt:nano", "--local-batch", "0"],
            "--local-batch: 0 given; must be a whole number, 1 to",
        ),
        (["allocation", ".", "--steps", MANY], "--steps: a whole number of about 400 digits given; must be"),
        (
            ["allocation", ".", "--epochs", TOO_MANY],
            "--epochs: a whole number of about 5,000 digits given; must be",
        ),
        (
            ["allocation", ".", "--efficiency-cut", "nan"],
            "--efficiency-cut: nan given; must be above 0 and up to 1",
        ),
        (["allocation", ".", "--efficiency-cut", "70%"], "is not a run directory"),
        (
            ["allocation", ".", "--queue-wait", f"{TOO_MANY}=1h"],
            "--queue-wait: a whole number of about 5,000 digits",
        ),
        (
            ["allocation", ".", "--queue-wait", "1=1e400h"],
            "--queue-wait: '1e400h' given; must be 0 s to 3650 days",
        ),
        (["sweep", "quick", "--fabric", f"{TOO_MANY} x 1gbit"], "must be a whole number, 1 to 128"),
        (["sweep", "quick", "--fabric", "2 x 1e400gbit"], "must be 8 Mbit/s to 4 Tbit/s: is the unit right?"),
        (["sweep", "quick", "--fabric", "² x 1gbit"], "write nodes x rate"),
        (
            ["submit", "quick", "--dry-run", "--time", "1e400h"],
            "--time: inf given; must be 1 min to 365 days",
        ),
        (["submit", "quick", "--dry-run", "--nodes", MANY], "--nodes: a whole number of about 400 digits"),
        (["sweep", "qu\0ick"], r"argument 'qu\x00ick' has a NUL"),
        (["sweep", "quick", "--out", "a\udcff"], "bytes that are not UTF-8"),
        (["sweep", "quick", "--out", "Z\udcc3\udcbcrich"], "is UTF-8, but Python decodes"),
        (["sweep", "quick", "--out", "Z\udcc3\udcbc\0"], "has a NUL or bytes"),
        (["sweep", LONG], "the name is too long"),
        (["sweep", f"{LONG}.toml"], "the name is too long"),
        (["sweep", "quick", "--out", LONG], "has 300 bytes; the name of a directory must have 150 at most"),
        (
            ["sweep", "quick", "--out", f"{LONG}/run"],
            "has 300 bytes; the name of a directory must have 255 at most",
        ),
        (["plan", "quick", "--nodes", "a", "--out", LONG], "has 300 bytes"),
        (["report", LONG], "the name is too long"),
        (["init", LONG], "the name is too long"),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_what_cannot_be_is_a_wrong_request(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "experiments").symlink_to(Path("experiments").absolute())
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "allocation":
        arguments = ["allocation", str(tmp_path), *arguments[2:]]
    message = refused(capsys, *arguments)
    assert said in message
    assert message.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["experiments"]


def test_an_experiment_file_with_a_long_name_is_told_to_have_a_shorter_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{'n' * 200}.toml"
    path.write_text("", encoding="utf-8")
    assert "name: 'nnn" in (message := run_and_read(capsys, "sweep", path, "--dry-run"))
    assert "100 at most: files and folders are named after it" in message


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--total", "4min", "--set", "total=5 min"), "'budget.total=240.0' and 'total=5 min'"),
        (
            ("--resolve", "3%", "--set", "budget.target_half_width=0.02"),
            "'budget.target_half_width=0.03' and 'budget.target_half_width=0.02'",
        ),
    ],
)
def test_a_flag_and_a_setting_may_not_contradict_each_other(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = run_and_read(capsys, "sweep", "quick", *flags, "--dry-run")
    assert f"--set: given twice, as {said}; give it once" in message


def run_and_read(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run([str(one) for one in arguments]) == 2
    return capsys.readouterr().err


def test_a_run_directorys_name_may_have_its_limit(tmp_path: Path) -> None:
    checked_name(tmp_path / ("n" * 150))
    with pytest.raises(OutputError, match="has a NUL; choose another --out"):
        checked_name(Path("a\0b"))
    with pytest.raises(OutputError, match="has 151 bytes"):
        checked_name(tmp_path / ("n" * 151))
    with pytest.raises(OutputError, match="has 152 bytes"):
        checked_name(tmp_path / ("ä" * 76))


# Nothing is left behind if nothing can be written.


def full(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_of_a_directory_that_cannot_be_filled_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.setattr("ddpbench.records.files.create_file", full)
    for path in (there / "new/run", there):
        with pytest.raises(OutputError, match="No space left on device; free some"):
            RunDir(path).create()
    assert list(tmp_path.iterdir()) == [there]
    assert list(there.iterdir()) == []


def test_a_disk_that_is_full_before_the_plan_stands_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nearly(prepared: Any, *_: object) -> None:
        prepared.run.machine.write_text("{", encoding="utf-8")
        full()

    class Servers:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Servers:
            return self

        def __exit__(self, *_: object) -> None: ...
        def of(self, _: object) -> None: ...

    monkeypatch.setattr(sweep, "Servers", Servers)
    monkeypatch.setattr(sweep, "identify", nearly)
    message = run_and_read(capsys, "sweep", "quick", "--out", tmp_path / "run")
    assert "run cannot be written: No space left on device; free some space" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), LaunchError("the fork server was not ready")]
)
def test_what_ends_a_sweep_says_how_to_resume_it(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --out, repeating the command would start another run."""
    path = tmp_path / "a run"

    def ended(work: sweep.Sweep, _interrupted: object) -> None:
        path.mkdir()
        work.result.run.plan.write_text("{}", encoding="utf-8")
        raise error

    monkeypatch.setattr(ddpbench, "carry_out", ended)
    assert run(["sweep", "quick", "--out", str(path)]) == 1
    message = capsys.readouterr().err
    assert message.endswith(f"; resume with: ddpbench sweep '{path}'\n")
    assert "same command" not in message


def test_a_sweep_that_is_interrupted_at_once_says_that_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while the cases are being listed: the sweep has not begun."""
    monkeypatch.setattr("ddpbench.cli.sweep.aligned", Mock(side_effect=KeyboardInterrupt))
    assert run(["sweep", "quick", "--out", str(tmp_path / "run")]) == 130
    message = capsys.readouterr().err
    assert "to run, into" in message
    assert message.endswith("interrupted; nothing was measured\n")


def test_a_report_that_cannot_be_written_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(work: sweep.Sweep, _interrupted: object) -> None:
        work.result.launches = 1

    monkeypatch.setattr(ddpbench, "carry_out", measured)
    monkeypatch.setattr("ddpbench.report_on", Mock(side_effect=OutputError("the report cannot be written")))
    assert run(["sweep", "quick", "--out", str(tmp_path / "run")]) == 1
    message = capsys.readouterr().err
    assert message.endswith(f"the report cannot be written; resume with: ddpbench sweep {tmp_path / 'run'}\n")


def test_only_a_sweep_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpbench.records.files.create_file", full)
    with pytest.raises(OutputError) as caught:
        RunDir(tmp_path / "run").create()
    assert str(caught.value).endswith("No space left on device; free some space")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    (disk / "filling").write_bytes(bytes(60 << 10))
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_on_a_full_disk_a_sweep_leaves_nothing(full_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = run_and_read(capsys, "sweep", "quick", "--out", full_disk / "runs/run")
    assert "cannot be written: No space left on device" in message
    assert [path.name for path in full_disk.iterdir()] == ["filling"]


# Texts of other programs on the terminal.

ESCAPE = "\x1b]0;title\x07\x1b[2J\x9b1m \u202egnp"


def test_exceptions_of_a_workload_are_printed_without_what_a_terminal_obeys() -> None:
    case = Case(workload=f"a{ESCAPE}.py:X", strategy="ddp")
    outcome: Any = SimpleNamespace(status="failed", error=f"rank 0: ValueError: {ESCAPE}")
    for kind, terminal in ((LineListener, False), (BarListener, True)):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=200, color_system=None, highlight=False)
        listener = kind(console)
        listener.launch_ended(PlannedCase(case=case), outcome, None)
        listener.warn(ESCAPE)
        if isinstance(listener, BarListener):
            listener.preparing(ESCAPE)
            assert not unprintable(str(listener._progress.tasks[0].description))
        else:
            assert "ValueError: " in file.getvalue()
        assert "title\x07" not in file.getvalue()
        assert "\x1b[2J" not in file.getvalue()
        assert "\u202e" not in file.getvalue()


def test_what_is_printed_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    show(ESCAPE, "ä")
    say(ESCAPE)
    printed = capsys.readouterr().out
    assert not unprintable(printed)
    assert "ä" in printed


def test_a_stream_that_cannot_write_a_character_gets_a_question_mark() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    show("±3 %", file=stream)
    assert raw.getvalue() == b"?3 %\n"


def test_messages_of_the_parser_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(["sweep", "quick", f"--x{ESCAPE}"])
    assert caught.value.code == 2
    assert not unprintable(capsys.readouterr().err)


def test_a_files_name_is_printed_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a\x1b[2Jb.toml"
    path.write_text("[base]\nlocal_batch = 0\n", encoding="utf-8")
    assert not unprintable(run_and_read(capsys, "sweep", path))


# Command lines to paste.


def test_every_printed_command_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a run's dir"
    assert run(["plan", "quick", "--nodes", "a,b", "--out", str(out)]) == 0
    *_, last = capsys.readouterr().out.rstrip("\n").split("\n")
    assert shlex.split(last.partition("records: ")[2]) == ["ddpbench", "report", str(out)]
    printed = run_and_read(capsys, "plan", "quick", "--nodes", "a,b", "--out", out)
    assert shlex.split(printed.partition("with: ")[2]) == ["ddpbench", "plan", str(out)]
    lines = f"the lines of ddpbench plan {shlex.quote(str(out))}"
    assert resume_command(out) == lines  # it was planned
    assert resume_command(out, "--retry-failed") == f"{lines}, with --retry-failed at their end"
    (out / "machine.json").unlink()
    assert shlex.split(resume_command(out)) == ["ddpbench", "sweep", str(out)]
    assert run(["plan", "quick", "--nodes", "a,b", "--out", str(out)]) == 2
    shutil.rmtree(out)
    assert run(["plan", "quick", "--nodes", "a,b", "--out", str(out)]) == 0
    capsys.readouterr()
    printed = run_and_read(capsys, "sweep", out)
    assert shlex.split(printed.partition("run ")[2]) == [
        "ddpbench",
        "plan",
        str(out),
    ]


def test_launches_of_a_dry_run_are_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a run's dir"
    assert run(["sweep", "quick", "--dry-run", "-v", "--out", str(out)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "-m ddpbench.worker" in line]
    assert lines
    assert all(str(out) in shlex.split(line) for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "circle", "circle"],
        ["history", "circle", "circle"],
        ["report", "circle"],
        ["merge", "circle", "circle", "--out", "new"],
        ["merge", "circle", "circle", "--out", "circle/new"],
        ["sweep", "circle", "--dry-run"],
        ["sweep", "quick", "--dry-run", "--out", "circle/new"],
        ["sweep", "quick", "--dry-run", "--set", "base.workload=circle/train.py:Own"],
        ["init", "circle"],
        ["verify", "--workload", "circle/train.py:Own"],
    ],
    ids=" ".join,
)
def test_links_that_lead_in_a_circle_are_refused_in_a_sentence(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    assert run(words) == 2
    assert "circle" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["circle"]
