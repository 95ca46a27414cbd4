"""Merging runs from other users: nothing outside is read or written, and a refusal leaves nothing behind."""

from __future__ import annotations

import json
import os
import secrets
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddpbench
from ddpbench.analysis.read.status import resume_command
from ddpbench.cli import run as cli
from ddpbench.cli import submit
from ddpbench.errors import IdentityError, OutputError, RequestError
from ddpbench.launch.merge.launches import copy_proofs
from ddpbench.launch.merge.merge import merge
from ddpbench.records import RankStart, RunDir, read_launch
from ddpbench.records.plan import read_plan
from ddpbench.spec import Case
from tests.exchanges import Exchanging
from tests.launch.test_merge import SINGLE, a_run
from tests.synthetic import case_of

DDP = case_of("ddp", 2)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunDir, RunDir]:
    one = a_run(tmp_path / "one", {SINGLE: 100, DDP: 110}, rounds=3)
    return one, a_run(tmp_path / "two", {SINGLE: 100, DDP: 110}, rounds=3, started_utc="later")


def rename_case(run: RunDir, **changes: object) -> str:
    """Change a case in the plan, with its id and folder if possible."""
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    case = plan["cases"][1]
    old = case["case_id"]
    case.update(changes)
    new = str(changes.get("case_id") or Case.from_json(case).case_id)
    run.plan.write_text(json.dumps(plan).replace(json.dumps(old), json.dumps(new)), encoding="utf-8")
    target = run.cases / new
    target.parent.mkdir(parents=True, exist_ok=True)
    (run.cases / old).rename(target)
    return new


@pytest.mark.parametrize(
    "changes",
    [
        {"case_id": "../../../escaped"},
        {"case_id": "/tmp/escaped"},
        {"case_id": "ddp-w2-bdefault-00000000"},
        {"strategy": "../../../escaped"},
        {"local_batch": 9},
        {"strategy": "a/b"},
    ],
    ids=str,
)
def test_a_plan_whose_ids_lead_elsewhere_is_refused(
    runs: tuple[RunDir, RunDir],
    tmp_path: Path,
    changes: dict[str, object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = runs
    if "local_batch" in changes:  # the contents change, but not the id
        one.plan.write_text(
            one.plan.read_text(encoding="utf-8").replace('"local_batch": 8', '"local_batch": 9'),
            encoding="utf-8",
        )
    elif changes.get("case_id") == "/tmp/escaped":
        plan = one.plan.read_text(encoding="utf-8").replace(DDP.case_id, "/tmp/escaped")
        one.plan.write_text(plan, encoding="utf-8")
    else:
        rename_case(one, **changes)
    before = sorted(tmp_path.rglob("*"))
    for paths in ((one, two), (two, one)):
        assert cli(["merge", *(str(run.path) for run in paths), "--out", str(tmp_path / "new" / "out")]) == 2
        assert capsys.readouterr().err.startswith(f"ddpbench: {one.plan} is damaged: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_that_a_link_leads_to_is_copied(runs: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    one, two = runs
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0", encoding="utf-8")
    launch = one.launch(DDP.case_id, "measure", 0)
    (launch.path / "x.log").symlink_to(secret)
    launch.log(0).symlink_to(secret)
    os.mkfifo(launch.log(1))
    two.launch(DDP.case_id, "measure", 1).log(0).write_text("a log", encoding="utf-8")
    with two.launch(DDP.case_id, "measure", 2).log(0).open("wb") as file:
        file.truncate(2**40)
    merged = merge([one.path, two.path], tmp_path / "out")
    copied = [path for path in merged.run.path.rglob("*") if path.is_file()]
    assert not any(path.is_symlink() for path in merged.run.path.rglob("*"))
    assert not any("root:x" in path.read_text(encoding="utf-8") for path in copied)
    assert [path.name for path in copied if path.suffix == ".log"] == ["rank-00000.attempt-0.log"]
    assert [text for text in merged.left_out if "is a link" in text and str(launch.log(0)) in text]
    assert [text for text in merged.left_out if "is a pipe" in text]
    assert [text for text in merged.left_out if "1,099,511,627,776 bytes" in text]
    assert list(ddpbench.load(merged.run.path)["launches"]) == [6, 6]


@pytest.mark.parametrize("name", ["cases", "cases/case", "cases/case/launch-00", "experiment.toml"])
def test_a_directory_with_links_is_refused_whole(
    runs: tuple[RunDir, RunDir], tmp_path: Path, name: str
) -> None:
    one, two = runs
    path = one.path / name.replace("case/", f"{DDP.case_id}/").replace("cases/case", f"cases/{DDP.case_id}")
    moved = tmp_path / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(IdentityError, match=f"{path} is a link"):
        merge([two.path, one.path], tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


def test_a_merge_s_records_name_the_round_and_run_they_are_in_now(
    runs: tuple[RunDir, RunDir], tmp_path: Path
) -> None:
    one, two = runs
    first = two.launch(DDP.case_id, "measure", 0)
    first.records(1).rename(first.records(7))
    again = merge([one.path, two.path], tmp_path / "out").run
    run_id = read_plan(again).run_id
    assert run_id not in ("", read_plan(one).run_id)
    for number in range(6):
        records = read_launch(again.launch(DDP.case_id, "measure", number))
        assert records.outcome is not None
        assert (records.outcome.round, records.outcome.run_id) == (number, run_id)
        for rank in records.ranks:
            start = rank.last(RankStart)
            assert start is not None
            assert (start.case_id, start.round, start.ranks, start.run_id) == (DDP.case_id, number, 2, run_id)
    frame = ddpbench.load(again.path)
    assert list(frame["launches"]) == [6, 5]  # one lacks a rank
    assert list(frame["launches_failed"]) == [0, 1]


def test_a_launch_of_another_case_is_not_merged(runs: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    one, two = runs
    a, b = (one.launch(case.case_id, "measure", 1).path for case in (SINGLE, DDP))
    aside = a.with_name("aside")
    a.rename(aside)
    b.rename(a)
    aside.rename(b)
    merged = merge([one.path, two.path], tmp_path / "out")
    assert merged.launches == 10
    assert len(merged.left_out) == 2
    assert all("holding another launch's records" in text for text in merged.left_out)


def test_a_merge_that_fails_leaves_no_folder(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(run.path) for run in runs]
    out = tmp_path / "new" / "deep" / "out"

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ddpbench.launch.merge.merge.copy_proofs", fails)
        with pytest.raises(OutputError, match="No space left"):
            merge([run.path for run in runs], out)
    assert not (tmp_path / "new").exists()

    def refuses(*_: object, **__: object) -> None:
        raise IdentityError("no report of it")

    with monkeypatch.context() as patch:
        patch.setattr("ddpbench.report_on", refuses)
        assert cli(["merge", *paths, "--out", str(out)]) == 2
    assert not out.exists()


def _records_of(run: RunDir) -> int:
    return sum(file.stat().st_size for file in run.cases.glob("*/*/*"))


def test_a_run_of_more_than_the_limit_is_not_merged(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse files take no room in a stranger's archive, but all of it once copied."""
    paths, out = [run.path for run in runs], tmp_path / "out"
    most = max(_records_of(run) for run in runs) * 3 // 2
    monkeypatch.setattr("ddpbench.records.archive.MOST_BYTES", most)
    merge(paths, out)  # each run is within the limit, and both together are not
    assert _records_of(RunDir(out)) > most
    for file in runs[1].cases.glob("*/*/rank-*.jsonl"):
        with file.open("r+b") as sparse:
            sparse.truncate(most // 2)
    with pytest.raises(
        RequestError, match=rf"{paths[1]} has more .* \({most:,} bytes, or .*\): leave this run out"
    ):
        merge(paths, tmp_path / "next")
    assert not (tmp_path / "next").exists()
    assert not list(tmp_path.glob(".*"))


def test_files_that_are_left_out_count_before_they_are_read_whole(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a different run are left out, but each would be copied and read first."""
    paths = [run.path for run in runs]
    most = max(_records_of(run) for run in runs) * 3 // 2
    monkeypatch.setattr("ddpbench.records.archive.MOST_BYTES", most)
    (file, *_) = sorted(runs[1].cases.glob("*/*/rank-00000*.jsonl"))
    start = json.loads(file.read_text(encoding="utf-8").partition("\n")[0]) | {"run_id": "f" * 12}
    copied: list[str] = []

    def copy(source: Path, *_: object) -> None:
        copied.append(source.name)

    for attempt in (1, 2, 3):
        stray = file.with_name(f"rank-00000.attempt-{attempt}.jsonl")
        with stray.open("w", encoding="utf-8") as sparse:
            sparse.write(json.dumps(start | {"attempt": attempt}) + "\n")
            sparse.truncate(most // 2)
    with pytest.raises(RequestError, match="has more records and logs than ddpbench merges from one run"):
        merge(paths, tmp_path / "out")
    monkeypatch.setattr("ddpbench.records.archive.MOST_BYTES", 4 * most)
    monkeypatch.setattr("ddpbench.launch.merge.launches._readdress", lambda *_: None)
    monkeypatch.setattr("ddpbench.launch.merge.launches.copy_file", copy)
    merge(paths, tmp_path / "out")
    assert not [name for name in copied if ".attempt-" in name and ".attempt-0" not in name]


def test_sizes_of_a_submission_that_are_not_merged_are_reported_one_by_one(
    runs: tuple[RunDir, RunDir],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("ddpbench.records.archive.MOST_BYTES", 1000)
    monkeypatch.setattr("ddpbench.report_on", lambda path, **_: (f"page of {path.name}", None))
    sizes = [SimpleNamespace(run=run, launches=lambda: 1) for run in runs]
    submission = SimpleNamespace(path=tmp_path / "submission", sizes=sizes)
    assert submit._report(submission) == 1  # type: ignore[arg-type]
    printed = capsys.readouterr()
    assert "no report of all" in printed.err
    assert "leave this run out" in printed.err
    assert printed.out == "report: page of one\nreport: page of two\n"


def test_a_run_of_very_many_empty_files_is_not_merged(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpbench.records.archive._MOST_ON_DISK", 400_000)
    outcome = next(runs[1].cases.glob("*/launch-*/outcome.json"))
    outcome.write_text("damaged")  # which ranks the launch has is not known then
    for number in range(100):
        (outcome.parent / f"rank-{number:05}.attempt-1.jsonl").touch()
    with pytest.raises(RequestError, match="or 400,000 bytes on a disk"):
        merge([run.path for run in runs], tmp_path / "out")


def test_a_merge_writes_in_the_folder_that_it_has_looked_at(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that meanwhile takes its place is not followed."""
    mine, folder = tmp_path / "mine", tmp_path / "shared/folder"
    mine.mkdir()
    folder.mkdir(parents=True)

    def exchanged(*words: Any) -> None:
        folder.rename(tmp_path / "shared/away")
        folder.symlink_to(mine)
        copy_proofs(*words)

    monkeypatch.setattr("ddpbench.launch.merge.merge.copy_proofs", exchanged)
    merge([run.path for run in runs], folder / "out")
    assert list(mine.iterdir()) == []
    assert [path.name for path in (tmp_path / "shared/away").iterdir()] == ["out"]


def test_a_merge_writes_in_the_folder_that_it_has_made(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who renames it meanwhile redirects no write, and has nothing else removed."""
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    for folder in (mine, shared):
        folder.mkdir()
    (mine / "plan.json").write_text("mine", encoding="utf-8")

    def exchanged(*words: Any) -> None:
        (made,) = shared.iterdir()
        made.rename(tmp_path / "away")
        made.symlink_to(mine)
        copy_proofs(*words)

    monkeypatch.setattr("ddpbench.launch.merge.merge.copy_proofs", exchanged)
    with pytest.raises(OutputError, match="was replaced while it was written"):
        merge([run.path for run in runs], shared / "out")
    assert [path.read_text(encoding="utf-8") for path in mine.iterdir()] == ["mine"]
    assert list((tmp_path / "away").iterdir()) == []


def test_a_merge_that_gets_no_report_removes_what_it_has_made_alone(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, folder = tmp_path / "mine", tmp_path / "shared/folder"
    (mine / "out").mkdir(parents=True)
    (mine / "out/thesis.txt").touch()

    def refuses(*_: object, **__: object) -> None:
        folder.rename(tmp_path / "shared/away")
        folder.symlink_to(mine)
        raise IdentityError("no report of it")

    monkeypatch.setattr("ddpbench.report_on", refuses)
    assert cli(["merge", *(str(run.path) for run in runs), "--out", str(folder / "out")]) == 2
    assert (mine / "out/thesis.txt").exists()
    assert list((tmp_path / "shared/away").iterdir()) == []


def test_a_folder_that_takes_a_new_ones_place_at_once_is_neither_written_nor_removed(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who can rename replaces it by another folder of the merging user's as soon as it is made."""
    shared = tmp_path / "shared"
    (shared / "earlier/sub").mkdir(parents=True)
    (shared / "earlier/sub/thesis.txt").write_text("mine", encoding="utf-8")
    shared.chmod(0o777)
    swap = Exchanging(shared, ".out.merging-", "earlier")
    monkeypatch.setattr(os, "mkdir", swap)
    with pytest.raises(OutputError, match="another folder replaced it while it was being made"):
        merge([run.path for run in runs], shared / "out")
    assert swap.done
    (mine,) = shared.glob(".out.merging-*")
    assert [path.name for path in mine.rglob("*")] == ["sub", "thesis.txt"]
    assert list((shared / "earlier").iterdir()) == []


def test_what_somebody_has_put_where_a_merge_writes_first_is_not_used(
    runs: tuple[RunDir, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who guesses the name makes the merge fail, and no more."""
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0a" * size)
    first = tmp_path / ".out.merging-0a0a0a0a"
    first.symlink_to(mine)
    with pytest.raises(OutputError, match="File exists"):
        merge([run.path for run in runs], tmp_path / "out")
    assert list(mine.iterdir()) == []
    first.unlink()
    first.mkdir()
    (first / "theirs").touch()
    with pytest.raises(OutputError, match="File exists"):
        merge([run.path for run in runs], tmp_path / "out")
    assert (first / "theirs").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's link")
def test_a_merge_follows_nobody_elses_link_in_a_shared_folder(
    runs: tuple[RunDir, RunDir], tmp_path: Path
) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    for folder in (shared, mine):
        folder.mkdir()
    shared.chmod(0o1777)
    (shared / "results").symlink_to(mine)
    os.chown(shared / "results", 65534, 65534, follow_symlinks=False)
    with pytest.raises(
        OutputError, match="results is a link of another user in a folder that everybody can write to"
    ):
        merge([run.path for run in runs], shared / "results" / "out")
    assert list(mine.iterdir()) == []


def test_a_runs_name_adds_no_setting_to_the_merged_experiment(
    runs: tuple[RunDir, RunDir], tmp_path: Path
) -> None:
    one, two = runs
    named = two.path.rename(tmp_path / "two\nquestion = 'x'\x1b")
    merge([one.path, named], tmp_path / "both\n[base]")
    text = (tmp_path / "both\n[base]/experiment.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text) == {}


def test_the_path_of_a_merged_run_becomes_no_option(runs: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    one, two = runs
    merged = merge([one.path, two.path], tmp_path / "both").run.merged
    data = json.loads(merged.read_text(encoding="utf-8"))
    data["sources"][1]["path"] = "--set=base.workload=x.py:X"
    merged.write_text(json.dumps(data), encoding="utf-8")
    assert "ddpbench sweep ./--set=base.workload=x.py:X" in resume_command(tmp_path / "both")
