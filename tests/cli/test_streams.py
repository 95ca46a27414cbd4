"""The output of commands: closed streams, readers that leave, failures, and missing files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench.cli import run
from tests.synthetic import write_run

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
    assert ended.returncode > 2  # the descriptor of the file that was opened


def test_tables_are_printed_to_a_closed_terminal() -> None:
    line = ["sh", "-c", 'exec "$0" -m ddpbench list >&-', sys.executable]
    ended = subprocess.run(line, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("words", [["doctor"], ["report", "run"], ["baseline", "save", "mine", "RUN"]])
def test_a_working_directory_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    run_path = write_run(tmp_path / "run", 2).path
    assert run([word.replace("RUN", str(run_path)) for word in words]) > 0
    said = capsys.readouterr().err
    if words[0] == "report":
        assert "run does not exist: give a run directory" in said
    else:
        assert "the working directory is not there: it was deleted or moved meanwhile" in said
    assert "make the folder" not in said


def test_an_error_without_end_is_told_without_its_middle(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--figures", "png," + "x" * 50_000, "nowhere"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("ddpbench: ")
    assert " ... " in message
    assert len(message) < 3_100


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    line = (
        'for _ in 1 2 3; do "$0" -m ddpbench list; echo $? >&2; done | true'  # one may be faster than `true`
    )
    ended = subprocess.run(["sh", "-c", line, sys.executable], check=False, capture_output=True, text=True)
    codes = ended.stderr.split()
    assert set(codes) <= {"0", "141"}
    assert codes[-1] == "141"


@pytest.mark.parametrize(
    ("words", "full"),
    [("sweep nope", 2), ("sweep --nope", 2), ("history .", 2), ("sweep quick --dry-run", 0)],
)
def test_messages_that_nobody_reads_or_that_do_not_fit_end_with_a_code_that_is_documented(
    words: str, full: int, tmp_path: Path
) -> None:
    line = [sys.executable, "-m", "ddpbench", *words.split()]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    def code(stderr: int) -> int:
        return subprocess.run(
            line, check=False, stdout=subprocess.DEVNULL, stderr=stderr, env=buffered, cwd=tmp_path
        ).returncode

    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert code(writer) == (141 if full else 0)
    finally:
        os.close(writer)
    with Path("/dev/full").open("w") as disk:
        assert code(disk.fileno()) == full


def test_a_command_whose_progress_nobody_reads_or_that_does_not_fit_ends_so() -> None:
    script = (
        "import sys, ddpbench.cli as cli; from types import SimpleNamespace as N; from ddpbench.cli.lines import say\n"
        "def work(_):\n    for _ in range(9): say('round', sys.stderr)\n"
        "cli.make_parser = lambda _: N(parse_args=lambda _: N(run=work)); cli.main(['x'])"
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for where, code in (("2>&1 >/dev/null | true", 141), ("2>/dev/full", 1)):
        line = f'{{ sleep 0.5; "$0" -c "$1"; echo $? >&3; }} {where}'
        ended = subprocess.run(
            ["sh", "-c", f"exec 3>&1; {line}", sys.executable, script],
            check=False, capture_output=True, text=True, env=buffered,
        )  # fmt: skip
        assert ended.stdout.strip() == str(code), (where, ended)


@pytest.mark.parametrize("words", ["--help", "sweep --help", "list", "list --json", "sweep quick --dry-run"])
def test_output_to_a_full_disk_is_named_in_one_sentence(words: str) -> None:
    line = ["sh", "-c", f'exec "$0" -m ddpbench {words} >/dev/full', sys.executable]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(line, check=False, capture_output=True, text=True, env=buffered)
    assert ended.returncode == 1
    assert ended.stderr.startswith("ddpbench: standard output")
    assert "No space left on device" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("how", ["show('x' * 50_000)", "write_output(Path('-'), 'x' * 50_000)"])
def test_more_than_a_buffer_to_a_full_disk_names_standard_output(how: str) -> None:
    code = (
        "import ddpbench.cli as cli; from pathlib import Path; from types import SimpleNamespace as N\n"
        "from ddpbench.cli.lines import show; from ddpbench.records.outputs import write_output\n"
        f"cli.make_parser = lambda _: N(parse_args=lambda _: N(run=lambda _: {how})); raise SystemExit(cli.run(['x']))"
    )
    line = ["sh", "-c", 'exec "$0" -c "$1" >/dev/full', sys.executable, code]
    ended = subprocess.run(line, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("ddpbench: standard output")
    assert "No space left on device" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_report_says_which_cases_failed_and_ends_as_the_sweep_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "run", 4)
    assert run(["report", str(run_dir.path)]) == 0
    capsys.readouterr()
    for outcome in run_dir.cases.glob("ddp-*/launch-*/outcome.json"):
        outcome.write_text("torn", encoding="utf-8")
    assert run(["report", str(run_dir.path)]) == 1
    out, messages = capsys.readouterr()
    assert out == f"{run_dir.report}\n"
    assert any(line.startswith("ddp ") and ": failed: " in line for line in messages.splitlines())
    assert "--retry-failed" in messages


def test_what_has_no_records_is_not_exported_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "run", 4)
    assert run(["report", str(run_dir.path)]) == 0
    shutil.rmtree(run_dir.cases)
    for command in ("report", "export"):
        assert run([command, str(run_dir.path), *(["--format", "csv"] if command == "export" else [])]) == 2
        assert "has a report but no records" in capsys.readouterr().err


def test_an_experiment_of_a_run_that_is_empty_is_not_the_default_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "run", 4)
    run_dir.experiment.write_text("", encoding="utf-8")
    for given in (run_dir.path, run_dir.experiment):
        assert run(["sweep", str(given)]) == 2
        assert "experiment.toml is damaged: it is empty; restore it from a copy" in capsys.readouterr().err


def test_a_name_without_a_file_is_held_against_those_that_are_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('\ufeffname = "mine"\n', encoding="utf-8")
    assert run(["sweep", "mine.tml"]) == 2
    assert (
        "neither a file nor an experiment has the name 'mine.tml'; did you mean the file 'mine.toml'?"
        in capsys.readouterr().err
    )
    assert run(["sweep", "mine.toml", "--dry-run"]) == 0  # like a file that an editor has just created


@pytest.mark.parametrize("name", ["mine", "mine.toml"])
def test_a_pipe_in_place_of_an_experiment_is_told_as_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(name)
    assert run(["sweep", name]) == 2
    assert f"{name} is a device, a pipe or a socket: give a file, a run" in capsys.readouterr().err


def test_progress_that_nobody_reads_ends_as_other_output_does(capfd: pytest.CaptureFixture[str]) -> None:
    line = (
        "import sys\n"
        "from ddpbench import cli\n"
        "from ddpbench.cli.console import Progressive\n"
        "from ddpbench.cli import list as command\n"
        "def shows(_):\n"
        "    sys.stdin.read()\n"  # until the reader has gone
        "    Progressive().print('far')\n"
        "command._run = shows\n"
        "sys.exit(cli.run(['list']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", line], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writes:
        assert writes.stderr is not None
        writes.stderr.close()
        assert writes.stdin is not None
        writes.stdin.close()
        assert writes.wait(60) == 141


@pytest.mark.parametrize("lines", [1, 3, 4])
def test_a_sweep_whose_reader_leaves_ends_so_wherever_it_is(tmp_path: Path, lines: int) -> None:
    experiment = tmp_path / "one.toml"
    experiment.write_text(
        '[base]\nworkload = "mlp:small"\nstrategy = "single"\n[budget]\nrounds_min = 1\nrounds_max = 1\n'
    )
    line = f'("$0" -m ddpbench sweep {experiment} --out {tmp_path}/run; echo $? >{tmp_path}/code) 2>&1 | head -{lines}'
    subprocess.run(["sh", "-c", line, sys.executable], check=True, capture_output=True, cwd=tmp_path)
    assert (tmp_path / "code").read_text() == "141\n"


@pytest.mark.parametrize("words", [["--foo", "list"], ["--foo"]])
def test_a_flag_before_the_command_is_the_command_line_s(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(words)
    assert capsys.readouterr().err == (
        "ddpbench: error: unrecognized arguments: --foo\nFor all options: ddpbench --help\n"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sweep", "quick", "--dryrun"], "unrecognized arguments: --dryrun; did you mean --dry-run?"),
        (
            ["sweep", "quick", "--rounds", "3"],
            "unrecognized arguments: --rounds 3; set an experiment's settings with --set KEY=VALUE",
        ),
        (["list", "3"], "unrecognized arguments: 3"),
    ],
)
def test_an_unknown_flag_is_told_without_the_usage_but_with_where_to_read_it(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"ddpbench {words[0]}: error: {expected}\nFor all options: ddpbench {words[0]} --help\n"
    )
