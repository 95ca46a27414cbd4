"""`ddpbench show` prints what a sweep printed at its end, and `--quiet` the answer alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.cli import run
from ddpbench.cli.results import answered, doubts, print_results
from ddpbench.records import RunDir
from tests.cli.test_dry_run import REPLAYS, finished_run
from tests.failures.conftest import run_cli, workload
from tests.synthetic import write_run


@pytest.fixture
def finished(tmp_path: Path) -> RunDir:
    experiment = tmp_path / "replays.toml"
    experiment.write_text(REPLAYS, encoding="utf-8")
    return finished_run(str(experiment), tmp_path / "finished")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_prints_what_the_sweep_printed_and_writes_nothing(
    finished: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["sweep", str(finished.path)])
    *swept, page = capsys.readouterr().out.splitlines()
    assert page == f"report: {finished.report}"
    before = contents(finished.path)
    assert run(["show", str(finished.path)]) == code
    assert capsys.readouterr().out.splitlines() == swept
    assert run(["sweep", str(finished.path), "--json"]) == code
    swept_json = json.loads(capsys.readouterr().out)
    assert run(["show", str(finished.path), "--json"]) == code
    shown_json = json.loads(capsys.readouterr().out)
    assert {name for name in swept_json if swept_json[name] != shown_json[name]} <= {
        "stop_reason",
        "measured_share",
    }  # those of the last session
    finished.report.unlink()
    assert run(["show", str(finished.path), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["report"] is None
    assert not finished.report.exists()
    assert contents(finished.path) == {
        name: text for name, text in before.items() if name != str(finished.report)
    }


@pytest.mark.parametrize("failing", [0, 1])
def test_quiet_prints_failed_cases_and_the_answer(
    failing: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = write_run(tmp_path / "run", 6, failing=failing)
    (answer,) = summarize(made).conclusions.answer
    assert answer.beneath
    assert run(["show", str(made.path), "-q"]) == failing
    *failed, text, beneath = capsys.readouterr().out.splitlines()
    assert (text, beneath) == (answer.text, f"  {'; '.join(answer.beneath)}")
    assert len(failed) == failing
    assert all("ValueError: made up" in line for line in failed)


def test_quiet_prints_failed_checks_and_left_out_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = write_run(tmp_path / "run", 6)
    found = summarize(made)
    first, *others = found.conclusions.checks.rules
    checks = replace(found.conclusions.checks, rules=(replace(first, cases=6, broken=1), *others))
    conclusions = replace(found.conclusions, checks=checks, left_out=["1 file left out"])
    print_results(replace(found, conclusions=conclusions), quiet=True)
    printed = capsys.readouterr().out.splitlines()
    assert "1 file left out" in printed
    assert checks.line
    assert set(checks.line.splitlines()) <= set(printed)


def test_a_quiet_sweep_prints_its_answer_and_its_page(finished: RunDir, tmp_path: Path) -> None:
    experiment = tmp_path / "tiny.toml"
    experiment.write_text(
        f'[base]\nstrategy = "single"\nworld_size = 1\nlocal_batch = 4\nworkload = "{workload("Sound")}"\n'
        '[budget]\nrounds_min = 1\nrounds_max = 1\nmeasured_s = "60 ms"\n',
        encoding="utf-8",
    )
    new = tmp_path / "new"
    for path, words in ((new, (experiment, "--out", new)), (finished.path, (finished.path,))):
        ended = run_cli("sweep", *words, "-q")
        assert not ended.stderr
        *answer, page = ended.stdout.splitlines()
        assert page.startswith("report: ")
        found = summarize(RunDir(path))
        assert answer == [*answered(found), *doubts(found)]


def test_a_comparisons_folder_names_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
    assert run(["show", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"ddpbench: {tmp_path} is a comparison's directory, not a run directory: its runs are {tmp_path}/base and "
        f"{tmp_path}/new\n"
    )


def test_a_report_without_records_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.html").write_text("")
    assert run(["show", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "so nothing can be shown: run this where the sweep ran" in said


def test_a_dry_run_has_no_answer_to_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "quick", "--dry-run", "--quiet"]) == 2
    assert "a dry run gives no answer" in capsys.readouterr().err
