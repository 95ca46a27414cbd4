"""Many made-up runs of one case: their matching, order and changes, the texts about them, and refusals."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddpbench.analysis.export.formats import exported
from ddpbench.analysis.statistics.resolution import DRIFT
from ddpbench.cli import run as run_cli
from ddpbench.features.history.analysis import History, history_of, read_sides
from ddpbench.features.history.analysis.wording import (
    headline,
    markdown,
    place_words,
    places,
    remarks,
    rows,
    to_json,
)
from ddpbench.features.history.report.picture import case_picture
from ddpbench.launch.merge.merge import merge
from ddpbench.records import RunDir
from ddpbench.spec import Budget, Case
from tests.analysis.test_changes import made
from tests.synthetic import (
    MS,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_sessions,
)

SINGLE, DDP, MASTER = case_of("single", 1), case_of("ddp", 2), case_of("master", 2)
STEP_MS = {SINGLE: 40.0, DDP: 45.0}


def night(
    folder: Path,
    number: int,
    steps_ms: dict[Case, float],
    *,
    commit: str = "4be1a90",
    torch: str = "2.13.0+cpu",
    failed: Case | None = None,
    rounds: int = 5,
) -> Path:
    """Return the run of one night in a made-up month."""
    path = folder / f"night-{number:02d}"
    run = made(path, steps_ms, rounds=rounds, noise=0.02, failed=failed)
    machine = json.loads(run.machine.read_text())
    machine["context"] |= {"started_utc": f"2026-10-{number + 1:02d}T02:00:00+00:00", "git_commit": commit}
    machine["identity"]["torch"] = torch
    run.machine.write_text(json.dumps(machine))
    return path


def test_folders_without_runs_are_skipped_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights = [night(tmp_path / "runs", number, STEP_MS) for number in range(2)]
    (tmp_path / "runs/notes").mkdir()
    (tmp_path / "runs/.cache").mkdir()
    (tmp_path / "empty").mkdir()
    assert run_cli(["history", str(tmp_path / "empty"), str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"skipped {folder}, which holds no run: plan.json is missing"
        for folder in (tmp_path / "empty", tmp_path / "runs/notes")
    ]
    assert run_cli(["history", *map(str, nights)]) == 0
    assert capsys.readouterr() == (printed.out, "")


def test_merges_are_left_out_and_named_if_their_sources_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    nights = [night(folder, number, STEP_MS) for number in range(3)]
    assert run_cli(["history", str(folder)]) == 0
    without = capsys.readouterr().out
    merge(nights[:2], folder / "both")
    merge([folder / "both", nights[2]], folder / "every")
    first, second, third = nights
    both = (
        f"skipped: {folder / 'both'} was merged from {first} and {second}, but each run may count only once"
    )
    every = f"skipped: {folder / 'every'} was merged from {folder / 'both'}, {first}, {second} and 1 more"
    assert run_cli(["history", str(folder)]) == 0
    assert capsys.readouterr() == (without, f"{both}\n{every}, but each run may count only once\n")
    # without its sources it is a run like any other; given by itself with them, it is refused
    for one in (first, second):
        shutil.move(one, tmp_path / one.name)
    assert run_cli(["history", str(folder)]) == 0
    printed = capsys.readouterr().err
    assert printed == (
        f"skipped: {folder / 'every'} was merged from {folder / 'both'} and {third}, but each run may count only once\n"
    )
    assert run_cli(["history", str(folder / "both"), str(tmp_path / first.name)]) == 2
    assert "has the same launches as" in capsys.readouterr().err
    shutil.rmtree(third)
    assert run_cli(["history", str(folder)]) == 2
    assert "only one run is given" in capsys.readouterr().err


def test_files_of_pytest_benchmark_are_runs_too(month: Path, tmp_path: Path) -> None:
    """Files of the same nights, exported: the same change-point, in the order in which they were measured."""
    folder = tmp_path / ".benchmarks"
    folder.mkdir()
    for number in range(20):
        content = exported(RunDir(month / f"night-{number:02d}"), "pytest-benchmark")
        (folder / f"{20 - number:04d}_main.json").write_bytes(content)
    found, saved = (history_of(read_sides([each])) for each in (month, folder))
    changes = [[(one.before, one.after, one.ratio) for one in case.changes] for case in found.cases]
    assert changes == [[(one.before, one.after, one.ratio) for one in case.changes] for case in saved.cases]
    assert any(changes)


def drifted(seed: int, nights: int) -> list[float]:
    """Return the drift factor of each night's machine on every step time."""
    return list(np.exp(np.random.default_rng(seed).normal(0, DRIFT, nights)))


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return twenty nights; from the twelfth on, DDP takes 15 % longer. One night lacks it, and one has it failed."""
    folder = tmp_path_factory.mktemp("month")
    for number, (one, other) in enumerate(zip(drifted(1, 20), drifted(2, 20), strict=True)):
        steps = {SINGLE: 40.0 * one, DDP: 45.0 * other * (1.15 if number >= 12 else 1.0)}
        if number == 5:
            del steps[DDP]
        night(
            folder,
            number,
            steps,
            commit="4be1a90" if number < 12 else "77c0ffe",
            failed=DDP if number == 8 else None,
        )
    return folder


@pytest.fixture(scope="module")
def history(month: Path) -> History:
    return history_of(read_sides([month]))


def test_a_step_is_told_with_its_size_and_between_which_runs(history: History) -> None:
    single, ddp = history.cases
    assert single.changes == ()
    (change,) = ddp.changes
    assert (change.before, change.after) == (11, 12)
    low, high = change.ratio.low, change.ratio.high
    assert low is not None
    assert high is not None
    assert 1.05 < low < 1.15 < high < 1.25
    assert [level.runs for level in ddp.levels] == [10, 8]
    assert ddp.levels[1].step_s / ddp.levels[0].step_s == pytest.approx(change.ratio.value, rel=1e-12)
    logs = [[point.log for point in ddp.measured if (point.run >= 12) == late] for late in (False, True)]
    assert math.log(change.ratio.value) == pytest.approx(np.mean(logs[1]) - np.mean(logs[0]))
    sentence = headline(history)
    assert sentence.startswith(
        "1 of 2 cases changed over 20 runs from 2026-10-01 to 2026-10-20; the largest change: ddp"
    )
    assert re.search(
        r"slower 1\.1\d \[1\.\d\d, 1\.\d\d\] between night-11 and night-12 \(2026-10-13\)\.$", sentence
    )
    assert [row[1] for row in rows(history)] == ["20", "18 of 20"]
    assert rows(history)[0][-1] == "no change shown"


def test_levels_and_runs_are_the_means_that_the_ratio_compares(tmp_path: Path) -> None:
    """After the change, one launch in five takes 1.4 times as long: arithmetic means would give another ratio."""
    dice = np.random.default_rng(3)
    drifts = dice.normal(0, 0.004, 12)
    for number, drift in enumerate(drifts):
        run = RunDir(tmp_path / f"run-{number:02d}")
        write_plan(run, [DDP], Budget(rounds_min=5, rounds_max=5))
        write_proof(run, DDP)
        for launch in range(5):
            usual = 40.0 * math.exp(drift) * (1.0 if number < 6 else 0.96)
            time_ns = round(usual * (1.4 if number >= 6 and launch == 0 else 1.0) * MS)
            write_launch(run, DDP, launch, [RankLaunch(blocks=[[time_ns + launch] * 10] * 3)] * 2)
        write_sessions(run)
    history = history_of(read_sides([tmp_path], as_given=True))
    (case,) = history.cases
    (change,) = case.changes
    before, after = case.levels
    assert after.step_s / before.step_s == pytest.approx(change.ratio.value, rel=1e-12)
    latest_s = 0.040 * math.exp(drifts[-1]) * 0.96 * 1.4**0.2
    step = case.measured[-1].step
    assert step is not None
    assert step.value == pytest.approx(latest_s, rel=1e-6)
    assert after.step_s == pytest.approx(0.040 * math.exp(drifts[6:].mean()) * 0.96 * 1.4**0.2, rel=1e-6)
    row = to_json(history)["cases"][0]
    assert [level["step_time_s"] for level in row["levels"]] == [before.step_s, after.step_s]
    drawn = case_picture(history, case).table.rows[-1][2].measured
    assert drawn is not None
    assert drawn.value == pytest.approx(1e3 * step.value)
    assert rows(history)[0][2] == f"{1e3 * latest_s:.3g}"


def test_the_table_says_over_what_its_interval_is(history: History) -> None:
    """It is over launches of the latest run, without the drift between runs; ratios are over runs."""
    assert "| latest, ms | 95 %, launches |" in markdown(history)
    assert "A step time's interval is over one run's launches, without the drift between runs." in remarks(
        history
    )


def test_what_else_differs_is_told_at_the_change(history: History) -> None:
    (place,) = places(history)
    assert place_words(place).endswith("Also different: commit 4be1a90 before, 77c0ffe after.")
    assert "Between night-11 (2026-10-12) and night-12 (2026-10-13): ddp" in place_words(place)


@pytest.mark.parametrize(
    ("total", "said"),
    [(60, "The records show no other difference."), (90, "Also different: the experiment file differs in")],
)
def test_a_drawn_seed_is_no_other_experiment(tmp_path: Path, total: int, said: str) -> None:
    """Each run of one file draws the order of its launches, and records it in its experiment.toml and digest."""
    for number in range(12):
        run = RunDir(tmp_path / f"run-{number:02d}")
        write_plan(run, [DDP], Budget(rounds_min=3, rounds_max=3))
        write_proof(run, DDP)
        for launch in range(3):
            time_ns = round((40 if number < 6 else 60) * MS) + 1000 * number + launch
            write_launch(run, DDP, launch, [RankLaunch(blocks=[[time_ns] * 10] * 3)] * 2)
        write_sessions(run)
        seconds = 60 if number < 6 else total
        run.experiment.write_text(f'name = "a"\n[budget]\nseed = {number}\ntotal = {seconds}\n')
        machine = json.loads(run.machine.read_text())
        machine["identity"]["experiment_digest"] = f"{number:016x}"
        run.machine.write_text(json.dumps(machine))
    (place,) = places(history_of(read_sides([tmp_path], as_given=True)))
    assert said in place_words(place)
    assert "seed" not in place_words(place)
    assert ("budget.total: 60 before, 90 after." in place_words(place)) == (total == 90)


def test_runs_without_numbers_are_gaps_that_are_said(history: History) -> None:
    ddp = history.cases[1]
    assert [(point.run, point.status) for point in ddp.gaps] == [(5, "not"), (8, "failed")]
    assert f"{ddp.label} has no numbers of 2 runs: not in night-05; failed in night-08." in remarks(history)
    case = to_json(history)["cases"][1]
    assert case["points"][5]["status"] == "absent"
    assert case["points"][5]["step_time_s"] is None
    assert "boom" in case["points"][8]["reason"]
    assert case["changes"][0]["ratio"]["low"] > 1
    assert (case["changes"][0]["before_run"], case["changes"][0]["after_run"]) == (11, 12)


def test_runs_are_in_the_order_of_measuring_or_as_given(month: Path, history: History) -> None:
    given = [month / f"night-{number:02d}" for number in (7, 3, 12)]
    assert [side.name for side in read_sides(given)] == ["night-03", "night-07", "night-12"]
    assert [side.name for side in read_sides(given, as_given=True)] == ["night-07", "night-03", "night-12"]
    assert [side.name for side in history.sides] == [f"night-{number:02d}" for number in range(20)]


def test_one_case_is_chosen_by_a_part_of_its_label(month: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["history", str(month), "--case", "DDP"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ddp · 2 ranks · default buckets changed over 20 runs")
    assert "single" not in out
    assert run_cli(["history", str(month), "--case", "fsdp"]) == 2
    assert "--case fsdp: no such case" in capsys.readouterr().err


def test_cases_are_matched_as_two_runs_are(tmp_path: Path) -> None:
    """The experiment's name does not distinguish cases; a number of threads does."""
    same, threads = replace(DDP, experiment="other"), replace(DDP, threads_per_rank=2)
    for number, case in enumerate((DDP, same, threads, same)):
        night(tmp_path, number, {case: 45.0})
    history = history_of(read_sides([tmp_path]))
    (case,) = history.cases
    assert [point.status for point in case.points] == ["ok", "ok", "not", "ok"]
    assert history.alone == 1
    assert "1 case is in only one run and left out." in remarks(history)


def test_too_few_runs_are_said_with_how_many_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for number in range(4):
        night(tmp_path, number, {DDP: 45.0 if number < 2 else 90.0})
    assert run_cli(["history", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Not enough runs to tell whether a step time changed: 8 at least are needed, and there are 4."
    )
    assert "not enough runs to tell: 4 of 8 at least" in " ".join(out.split())


def test_a_case_that_never_had_numbers_is_told_and_not_drawn(tmp_path: Path) -> None:
    for number in range(2):
        night(tmp_path, number, STEP_MS, failed=DDP)
    page = tmp_path / "page.html"
    assert run_cli(["history", str(tmp_path), "--html", str(page)]) == 0
    assert page.read_text(encoding="utf-8").count("<figure>") == 1
    history = history_of(read_sides([tmp_path]))
    assert rows(history)[1][1:4] == ("0 of 2", "", "")


def test_other_machines_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(10):
        night(
            tmp_path,
            number,
            {DDP: 45.0 * (1 if number < 5 else 1.5)},
            torch="2.13.0+cpu" if number < 5 else "2.14.0",
        )
    assert run_cli(["history", str(tmp_path)]) == 2
    refusal = capsys.readouterr().err
    assert "--across" in refusal
    assert refusal.count("torch: '2.13.0+cpu' in night-04, '2.14.0' in night-05") == 1
    assert run_cli(["history", str(tmp_path), "--across"]) == 0
    out = capsys.readouterr().out
    assert "Also different: torch: '2.13.0+cpu' in night-04, '2.14.0' in night-05." in out
    assert "Runs differ in more than the program" in out


def _alone(folder: Path) -> list[str]:
    return [str(night(folder, 0, STEP_MS))]


def _nowhere(folder: Path) -> list[str]:
    return [str(folder / "nowhere")]


def _empty(folder: Path) -> list[str]:
    (folder / "empty").mkdir()
    return [str(folder / "empty")]


def _file(folder: Path) -> list[str]:
    path = folder / "notes.txt"
    path.write_text("no run")
    return [str(path), str(night(folder, 0, STEP_MS))]


def _apart(folder: Path) -> list[str]:
    return [str(night(folder, number, {case: 40.0})) for number, case in enumerate((SINGLE, DDP, MASTER))]


def _newer(folder: Path) -> list[str]:
    paths = [night(folder, number, STEP_MS) for number in range(2)]
    plan = json.loads((paths[1] / "plan.json").read_text())
    (paths[1] / "plan.json").write_text(json.dumps(plan | {"schema_version": 99}))
    return [str(folder)]


def _torn(folder: Path) -> list[str]:
    paths = [night(folder, number, STEP_MS) for number in range(2)]
    (paths[1] / "plan.json").write_text('{"schema_version": 1, "cases": [')
    return [str(folder)]


def _twice(folder: Path) -> list[str]:
    paths = [night(folder, number, STEP_MS) for number in range(2)]
    return [str(folder), str(paths[0])]


def _copied(folder: Path) -> list[str]:
    paths = [night(folder, number, STEP_MS) for number in range(2)]
    shutil.copytree(paths[0], folder / "copy")
    return [str(folder)]


def _undated(folder: Path) -> list[str]:
    paths = [night(folder, number, STEP_MS) for number in range(2)]
    machine = json.loads((paths[1] / "machine.json").read_text())
    machine["context"]["started_utc"] = "yesterday"
    (paths[1] / "machine.json").write_text(json.dumps(machine))
    return [str(folder)]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (_alone, "give several runs, or a folder of runs"),
        (_nowhere, "nowhere' is neither a run directory nor a file here, nor a baseline saved in"),
        (_empty, "empty has no runs: it is not a run directory"),
        (_file, "notes.txt is not a file of pytest-benchmark"),
        (_apart, "no two of these 3 runs have a case in common"),
        (_newer, "has schema 99"),
        (_torn, "plan.json cannot be read"),
        (_twice, "night-00 is given twice: give it once"),
        (_copied, "night-00 has the same launches as"),
        (_undated, "says 'yesterday' when it was measured: give the runs in order, with --as-given"),
    ],
)
def test_what_makes_no_history_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], list[str]], said: str
) -> None:
    assert run_cli(["history", *write(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_runs_that_do_not_say_when_they_were_measured_are_drawn_as_given(tmp_path: Path) -> None:
    (folder,) = _undated(tmp_path)
    assert run_cli(["history", folder, "--as-given", "--html", str(tmp_path / "page.html")]) == 0


def test_the_command_writes_markdown_and_json(
    month: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], history: History
) -> None:
    table = tmp_path / "table.md"
    assert run_cli(["history", str(month), "--markdown", str(table), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [case["verdict"] for case in printed["cases"]] == ["no change shown", "changed"]
    assert [run["git_commit"] for run in printed["runs"]][11:13] == ["4be1a90", "77c0ffe"]
    assert printed == to_json(history)
    assert table.read_text(encoding="utf-8") == markdown(history)
    assert "| case | runs | latest, ms | 95 %, launches | change-points |" in markdown(history)
    assert run_cli(["history", str(month), "--markdown", str(tmp_path / "no" / "table.md")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.usefixtures("painted")
def test_the_page_shows_every_case_and_loads_nothing(tmp_path: Path) -> None:
    odd = replace(DDP, workload="<script>alert(1)</script>")
    for number, factor in enumerate(drifted(3, 10)):
        night(tmp_path, number, {odd: 40 * factor * (1.5 if number >= 5 else 1), SINGLE: 30 * factor})
    page = tmp_path / "page.html"
    assert run_cli(["history", str(tmp_path), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<script") == 1, "the page's own"
    assert "Content-Security-Policy" in text
    assert text.count("<figure>") == 2
    assert text.count('class="drawn narrow-form"') == 2
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    again = tmp_path / "again.html"
    assert run_cli(["history", str(tmp_path), "--html", str(again)]) == 0
    assert again.read_bytes() == page.read_bytes()
    assert run_cli(["history", str(tmp_path), "--html", str(tmp_path / "no" / "page.html")]) == 2
