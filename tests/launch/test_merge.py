"""Merging: which runs can be joined, and that ratios stay within the rounds they were measured in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import Mock

import pytest

import ddpbench
from ddpbench.analysis import summarize
from ddpbench.cli import run as cli
from ddpbench.errors import IdentityError, OutputError, RequestError
from ddpbench.launch.merge.merge import merge
from ddpbench.machine.identity import setup_of
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, Case, PlannedCase
from tests.synthetic import (
    MS,
    Outcome,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_sessions,
)

SINGLE = case_of("single", 1)


def test_a_merge_that_is_interrupted_in_its_report_says_how_the_page_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100, case_of(): 60})
    two = a_run(tmp_path / "two more", {SINGLE: 101, case_of(): 61})

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ddpbench, "report_on", interrupted)
        assert cli(["merge", str(one.path), str(two.path), "--out", str(tmp_path / "m")]) == 130
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        "interrupted; the launches are merged, but the report is not written. To write it, run: ddpbench report "
        f"{tmp_path / 'm'}"
    )
    assert cli(last.rpartition(": ddpbench ")[2].split()) == 0


def test_a_merge_whose_page_cannot_be_written_claims_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100, case_of(): 60})
    two = a_run(tmp_path / "two", {SINGLE: 101, case_of(): 61})
    monkeypatch.setattr(ddpbench, "report_on", Mock(side_effect=OutputError("No space left on device")))
    assert cli(["merge", str(one.path), str(two.path), "--out", str(tmp_path / "m")]) == 2
    assert capsys.readouterr().err == "ddpbench: No space left on device\n"
    assert not (tmp_path / "m").exists()


def launches(run: RunDir, case: Case, step_ms: float, numbers: range) -> None:
    """Return launches whose step time grows by a millisecond per round, from `step_ms`."""
    for number in numbers:
        step = round((step_ms + number) * MS)
        write_launch(run, case, number, [RankLaunch(blocks=[[step] * 10])] * case.world_size)


def a_run(
    path: Path,
    cases: dict[Case, float],
    *,
    rounds: int = 5,
    asked: int | None = None,
    half_width: float = 0.02,
    crowded: int = 99,
    **machine: Any,
) -> RunDir:
    """Return a run of `rounds` of the requested rounds; `machine` changes its identity or context."""
    run = RunDir(path)
    planned = [PlannedCase(case=case, oversubscribed=case.world_size > crowded) for case in cases]
    fewest = asked or rounds
    write_plan(run, planned, Budget(rounds_min=fewest, rounds_max=fewest, target_half_width=half_width))
    data = json.loads(run.machine.read_text(encoding="utf-8"))
    for key, value in {"started_utc": f"2026-03-04T09:12:{len(str(path)):02}+00:00", **machine}.items():
        data["context" if key in data["context"] else "identity"][key] = value
    data["context"]["host"] = path.name
    run.machine.write_text(json.dumps(data), encoding="utf-8")
    for case, step_ms in cases.items():
        write_proof(run, case)
        launches(run, case, step_ms, range(rounds))
    write_sessions(run, wall_s=50, measured_s=40)
    return run


def test_world_sizes_of_two_allocations_become_one_curve(tmp_path: Path) -> None:
    near = a_run(tmp_path / "near", {SINGLE: 100, case_of("ddp", 2): 110})
    far = a_run(tmp_path / "far", {SINGLE: 200, case_of("ddp", 4): 250}, cores=list(range(8)))
    merged = merge([near.path, far.path], tmp_path / "both")
    frame = ddpbench.load(merged.run.path).set_index("case_id")
    assert merged.launches == 20
    assert frame["status"].tolist() == ["ok"] * 3
    # within rounds: the far machine is half as fast, and its four ranks are compared with its own base case
    single = [100, 101, 102, 103, 104]
    near_speedup = 2 * geometric_mean([base / (110 + n) for n, base in enumerate(single)])
    far_speedup = 4 * geometric_mean([(200 + n) / (250 + n) for n in range(5)])
    assert frame.loc[case_of("ddp", 2).case_id, "speedup"] == pytest.approx(near_speedup)
    assert frame.loc[case_of("ddp", 4).case_id, "speedup"] == pytest.approx(far_speedup)
    assert frame.loc[SINGLE.case_id, "launches"] == 10
    summary = summarize(merged.run)
    assert summary.course.wall_s == 100
    assert summary.course.stop_reason == "merged"
    assert summary.about.merged_from == (str(near.path), str(far.path))
    assert summary.conclusions.validity[0].startswith("Merged from 2 runs")
    (curve,) = summary.steps.laws
    assert [point.world_size for point in curve.laws.points] == [2, 4]
    assert [fit.law for fit in curve.laws.fits] == ["gustafson", "usl"]
    assert "cores" in summary.about.machine["identity"]  # type: ignore[operator]
    assert len(summary.about.machine["identity"]["cores"]) == 8  # type: ignore[index]


def test_rounds_of_the_same_case_are_counted_on(tmp_path: Path) -> None:
    cases = {SINGLE: 100.0, case_of("ddp", 2): 110.0}
    runs = [a_run(tmp_path / name, cases, started_utc=name) for name in ("a", "b", "c")]
    merged = merge([run.path for run in runs], tmp_path / "all")
    found = merged.run.launches(SINGLE.case_id)
    assert [launch.path.name for launch in found] == [f"launch-{number:02d}" for number in range(15)]
    assert [json.loads(launch.outcome.read_text())["round"] for launch in found] == list(range(15))
    plan = json.loads(merged.run.plan.read_text())
    assert len(plan["launches"]) == 30
    assert plan["budget"]["rounds_min"] == 5
    again = merge([merged.run.path, a_run(tmp_path / "d", cases, started_utc="d").path], tmp_path / "four")
    assert len(again.run.launches(SINGLE.case_id)) == 20
    assert len(json.loads(again.run.merged.read_text())["sources"]) == 4
    with pytest.raises(RequestError, match="hold the same run or a merge of it"):
        merge([merged.run.path, runs[1].path], tmp_path / "five")


def test_scopes_and_set_ups_of_all_runs_are_kept(tmp_path: Path) -> None:
    originals = [
        ("Small models.", {"cpu_governor": "performance", "numa_nodes": "1"}),
        ("Small models.", {"cpu_governor": "powersave", "numa_nodes": "1"}),
        ("Large ones.", {"cpu_governor": "performance", "numa_nodes": "1"}),
    ]
    runs = []
    for number, (scope, setup) in enumerate(originals):
        run = a_run(tmp_path / f"run{number}", {SINGLE: 100}, started_utc=str(number))
        for path, change in ((run.plan, {"scope": scope}), (run.machine, {})):
            data = json.loads(path.read_text(encoding="utf-8")) | change
            if path == run.machine:
                data["context"]["setup"] = setup
            path.write_text(json.dumps(data), encoding="utf-8")
        runs.append(run)
    alike = merge([runs[0].path, runs[2].path], tmp_path / "alike")
    summary = summarize(alike.run)
    assert summary.about.scope == "Small models. Large ones."
    assert summary.about.machine["context"]["setup"] == originals[0][1]  # type: ignore[index]
    both = merge([alike.run.path, runs[1].path], tmp_path / "both")
    summary = summarize(both.run)
    assert summary.about.scope == "Small models. Large ones."
    assert summary.about.machine["context"]["setup"] == {  # type: ignore[index]
        "run0, run2": originals[0][1],
        "run1": originals[1][1],
    }


def test_a_run_that_says_nothing_of_its_machine_is_not_spoken_for() -> None:
    setup = {"cpu_governor": "performance"}
    assert setup_of([{"host": "a", "setup": setup}, {"host": "b", "setup": setup}]) == setup
    assert setup_of([{"host": "a", "setup": setup}, {"host": "b"}]) == {"a": setup}
    assert setup_of([{"host": "a"}, {}]) == {}
    other = {"cpu_governor": "powersave"}
    assert setup_of([{"host": "a", "setup": setup}, {"host": "a", "setup": other}]) == {
        "a": setup,
        "a, run 2 of 2": other,
    }


def test_scopes_are_said_once_and_none_is_lost(tmp_path: Path) -> None:
    said = ["ResNet-18.", "No ResNet-18."]
    runs = []
    for number, scope in enumerate(said):
        run = a_run(tmp_path / f"run{number}", {SINGLE: 100}, started_utc=str(number))
        if number:  # an older plan has no scope
            run.experiment.write_text(f'name = "x"\nscope = "{scope}"\n', encoding="utf-8")
        else:
            run.plan.write_text(json.dumps(run.read_json(run.plan) | {"scope": scope}), encoding="utf-8")
        assert summarize(run).about.scope == scope
        runs.append(run)
    merged = merge([run.path for run in runs], tmp_path / "both").run
    assert summarize(merged).about.scope == "ResNet-18. No ResNet-18."
    others = []
    for number, scope in ((2, "VGG-11."), (3, "No ResNet-18.")):
        run = a_run(tmp_path / f"run{number}", {SINGLE: 100}, started_utc=str(number))
        run.plan.write_text(json.dumps(run.read_json(run.plan) | {"scope": scope}), encoding="utf-8")
        others.append(run.path)
    second = merge(others, tmp_path / "second").run
    again = merge([merged.path, second.path], tmp_path / "again").run
    assert summarize(again).about.scope == "ResNet-18. No ResNet-18. VGG-11."
    old = second.read_json(second.merged)
    for origin in old["sources"]:
        del origin["scope"]
    second.merged.write_text(json.dumps(old), encoding="utf-8")
    again = merge([merged.path, second.path], tmp_path / "old").run
    assert summarize(again).about.scope == "ResNet-18. No ResNet-18. VGG-11. No ResNet-18."


def test_a_merge_that_is_merged_again_keeps_every_set_up_and_speaks_for_nobody() -> None:
    p, q, r = ({"cpu_governor": name} for name in "pqr")
    once = {"host": "a", "setup": setup_of([{"host": "a", "setup": p}, {"host": "a", "setup": q}])}
    again = setup_of([once | {"merged_from": ["1", "2"]}, {"host": "a", "setup": r}])
    assert again == {"a": p, "a, run 2 of 2": q, "a, run 2 of 2 (2)": r}
    silent = {"host": "a, b", "setup": setup_of([{"host": "a", "setup": p}, {"host": "b"}])}
    assert setup_of([silent | {"merged_from": ["1", "2"]}, {"host": "c", "setup": p}]) == {"a": p, "c": p}


def test_unlike_machines_are_refused_with_every_difference_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100})
    two = a_run(tmp_path / "two", {SINGLE: 100}, cpu="Another processor", torch="2.12.0", cores=[0])
    assert cli(["merge", str(one.path), str(two.path), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert f"cpu: 'A made-up processor' in {one.path}, 'Another processor' in {two.path}" in message
    assert f"torch: '2.13.0+cpu' in {one.path}, '2.12.0' in {two.path}" in message
    assert "cores" not in message, "an allocation's size may differ"
    assert not (tmp_path / "out").exists()


def test_gpus_may_differ_in_number_and_not_in_kind(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100}, gpus=["H100"])
    two = a_run(tmp_path / "two", {SINGLE: 100}, gpus=["H100"] * 4)
    three = a_run(tmp_path / "three", {SINGLE: 100}, gpus=["A100"])
    merged = merge([one.path, two.path], tmp_path / "out")
    assert json.loads(merged.run.machine.read_text())["identity"]["gpus"] == ["H100"] * 4
    with pytest.raises(IdentityError, match=r"gpus: \['H100'\] in .*, \['A100'\] in"):
        merge([one.path, three.path], tmp_path / "other")


def test_the_workloads_sources_must_agree_where_both_have_the_same_ones(tmp_path: Path) -> None:
    own, other = case_of("single", 1, workload="train.py:Mine"), case_of("single", 1, workload="mlp")
    one = a_run(tmp_path / "one", {own: 100})
    two = a_run(tmp_path / "two", {own: 100}, workload_digest="changed")
    three = a_run(tmp_path / "three", {own: 100, other: 90}, workload_digest="changed")
    four = a_run(tmp_path / "four", {other: 90}, workload_digest="changed")
    for changed in (two, three):
        with pytest.raises(IdentityError, match="workload_digest"):
            merge([one.path, changed.path], tmp_path / "out")
    merge([one.path, four.path], tmp_path / "out")


def test_unfinished_and_crowded_launches_are_left_out_and_counted(tmp_path: Path) -> None:
    ddp = case_of("ddp", 4)
    small = a_run(tmp_path / "small", {SINGLE: 100, ddp: 300}, crowded=2)
    large = a_run(tmp_path / "large", {SINGLE: 100, ddp: 110}, started_utc="later")
    large.launch(SINGLE.case_id, "measure", 4).outcome.unlink()
    merged = merge([small.path, large.path], tmp_path / "out")
    assert merged.left_out == [
        f"5 launches of {ddp.case_id} in {small.path}: oversubscribed there, but not in another of the runs",
        f"1 launch of {SINGLE.case_id} in {large.path}: unfinished",
    ]
    frame = ddpbench.load(merged.run.path).set_index("case_id")
    assert not frame.loc[ddp.case_id, "oversubscribed"]
    assert frame.loc[ddp.case_id, "launches"] == 5
    assert any(
        "Left out of the merge: 5 launches" in text for text in summarize(merged.run).conclusions.validity
    )


def test_a_case_skipped_in_one_run_is_measured_in_the_other_and_a_failed_proof_is_not_hidden(
    tmp_path: Path,
) -> None:
    ddp = case_of("ddp", 4)
    few = RunDir(tmp_path / "few")
    write_plan(
        few, [SINGLE, PlannedCase(case=ddp, skip_reason="needs 4 GPUs")], Budget(rounds_min=5, rounds_max=5)
    )
    launches(few, SINGLE, 100, range(5))
    enough = a_run(tmp_path / "enough", {SINGLE: 100, ddp: 110}, started_utc="later")
    merged = merge([few.path, enough.path], tmp_path / "out")
    assert ddpbench.load(merged.run.path)["status"].tolist() == ["ok", "ok"]
    wrong = a_run(tmp_path / "wrong", {SINGLE: 100, ddp: 110}, started_utc="last")
    shutil.rmtree(wrong.case(ddp.case_id) / "proof")
    write_proof(wrong, ddp, Outcome(status="diverged", error="gradients differ"))
    merged = merge([enough.path, wrong.path], tmp_path / "diverged")
    assert ddpbench.load(merged.run.path).set_index("case_id").loc[ddp.case_id, "status"] == "diverged"


def test_wrong_requests_are_sentences(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100})
    two = a_run(tmp_path / "two", {SINGLE: 100}, started_utc="later")
    out = tmp_path / "out"
    with pytest.raises(RequestError, match="needs at least two run directories"):
        merge([one.path], out)
    with pytest.raises(RequestError, match="is given twice"):
        merge([one.path, one.path / ".." / "one"], out)
    copy = shutil.copytree(one.path, tmp_path / "copy")
    with pytest.raises(RequestError, match="hold the same run"):
        merge([one.path, Path(copy)], out)
    with pytest.raises(RequestError, match="does not exist"):
        merge([one.path, tmp_path / "nowhere"], out)
    with pytest.raises(RequestError, match="is a file"):
        merge([one.path, one.plan], out)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(IdentityError, match=r"is not a run directory: plan\.json is missing"):
        merge([one.path, empty], out)
    with pytest.raises(OutputError, match="exists already"):
        merge([one.path, two.path], empty)
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "empty", "one", "two"]


def test_a_merged_run_is_reported_and_refuses_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100, case_of("ddp", 2): 110})
    two = a_run(tmp_path / "two", {SINGLE: 100, case_of("ddp", 4): 110}, started_utc="later")
    out = tmp_path / "new" / "out"
    assert cli(["merge", str(one.path), str(two.path), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'report.html'}\n"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"This run was merged from {one.path}, {two.path} and cannot be resumed itself" in page
    for where in (out, out / "experiment.toml"):
        assert cli(["sweep", str(where)]) == 2
        assert (
            f"{out} was merged from {one.path}, {two.path} and cannot be resumed" in capsys.readouterr().err
        )


def test_a_merge_of_failed_cases_ends_as_their_sweeps_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100, case_of("ddp", 2): 110})
    two = a_run(tmp_path / "two", {SINGLE: 100, case_of("ddp", 4): 110}, started_utc="later")
    for outcome in two.cases.glob("ddp-*/launch-*/outcome.json"):
        failed = json.loads(outcome.read_text()) | {"status": "failed", "error": "rank 0 in warm-up: made up"}
        outcome.write_text(json.dumps(failed))
    assert cli(["merge", str(one.path), str(two.path), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "DDP · 4 ranks" in error or "ddp · 4 ranks" in error
    assert "rank 0 in warm-up: made up" in error


def test_allocations_of_one_and_two_nodes_are_merged(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100, case_of("ddp", 2): 110}, slots=[4])
    two = a_run(tmp_path / "two", {SINGLE: 100, case_of("ddp", 4): 120}, slots=[4, 4])
    merged = merge([one.path, two.path], tmp_path / "both")
    assert json.loads(merged.run.machine.read_text(encoding="utf-8"))["identity"]["slots"] == [4, 4]


def test_cases_of_different_runs_make_no_sentence_about_speed(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100, case_of("ddp", 2): 110})
    two = a_run(tmp_path / "two", {SINGLE: 100, case_of("master", 2): 220})
    summary = summarize(merge([one.path, two.path], tmp_path / "both").run)
    assert not any(finding.verdict in ("faster", "slower") for finding in summary.conclusions.findings)
    assert summary.conclusions.findings[0].line.startswith(
        "Not compared: 1 pair of cases that share no rounds"
    )
    assert summary.course.counts.planned == summary.course.counts.succeeded == 20


def errors_of(run: RunDir) -> dict[str, str]:
    """Return the error of each case by its label's strategy and ranks; empty if it is ok."""
    frame = ddpbench.load(run.path).fillna({"error": ""})
    assert [text == "" for text in frame["error"]] == [status == "ok" for status in frame["status"]]
    return dict(zip(frame["case_id"], frame["error"], strict=True))


def test_a_case_that_no_run_finished_stays_unfinished_beside_a_run_that_asked_for_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ddp, far = case_of("ddp", 2), case_of("ddp", 4)
    short = a_run(tmp_path / "short", {SINGLE: 100, ddp: 110}, rounds=3, asked=5)
    whole = a_run(tmp_path / "whole", {SINGLE: 100, far: 110}, rounds=2, started_utc="later")
    out = tmp_path / "out"
    assert cli(["merge", str(short.path), str(whole.path), "--out", str(out)]) == 1
    printed = capsys.readouterr().err
    said = f"measured in 3 of at least 5 rounds so far; resume with: ddpbench sweep {short.path}, then merge again"
    assert said in printed
    errors = errors_of(RunDir(out))
    assert errors == {SINGLE.case_id: "", far.case_id: "", ddp.case_id: said}
    # also in a merge of the merge, and in the other order
    other = a_run(tmp_path / "other", {far: 110}, rounds=2, started_utc="last")
    for number, paths in enumerate(([out, other.path], [other.path, out])):
        assert errors_of(merge(paths, tmp_path / f"again{number}").run)[ddp.case_id] == said
    more = a_run(tmp_path / "more", {ddp: 110}, rounds=2, asked=5, started_utc="more")
    assert errors_of(merge([out, more.path], tmp_path / "enough").run)[ddp.case_id] == "", "five together"


def test_runs_of_the_same_case_count_together_towards_the_most_that_one_asked_for(tmp_path: Path) -> None:
    few = a_run(tmp_path / "few", {SINGLE: 100}, rounds=1, asked=2)
    many = a_run(tmp_path / "many", {SINGLE: 100}, rounds=3, asked=5, started_utc="later")
    run = merge([few.path, many.path], tmp_path / "out").run
    assert read_plan(run).budget.rounds_min == 5
    assert errors_of(run)[SINGLE.case_id] == (
        f"measured in 4 of at least 5 rounds so far; resume with: ddpbench sweep {few.path} or ddpbench sweep "
        f"{many.path}, then merge again"
    )
    done = a_run(tmp_path / "done", {SINGLE: 100}, rounds=2, started_utc="last")
    assert errors_of(merge([many.path, done.path], tmp_path / "ok").run) == {SINGLE.case_id: ""}, "ok in one"


def test_a_case_that_a_spent_budget_left_with_few_rounds_is_as_ok_as_it_was(tmp_path: Path) -> None:
    spent = a_run(tmp_path / "spent", {SINGLE: 100}, rounds=1, asked=5)
    write_sessions(spent, "budget")
    whole = a_run(tmp_path / "whole", {case_of("ddp", 2): 110}, started_utc="later")
    assert errors_of(spent) == {SINGLE.case_id: ""}
    assert set(errors_of(merge([spent.path, whole.path], tmp_path / "out").run).values()) == {""}


def test_a_run_whose_launches_are_left_out_asks_for_nothing(tmp_path: Path) -> None:
    ddp = case_of("ddp", 4)
    small = a_run(tmp_path / "small", {SINGLE: 100, ddp: 300}, rounds=6, crowded=2)
    large = a_run(tmp_path / "large", {ddp: 110}, rounds=1, asked=2, started_utc="later")
    merged = merge([small.path, large.path], tmp_path / "out").run
    assert "1 of at least 2 rounds so far" in errors_of(merged)[ddp.case_id]
    other = a_run(tmp_path / "other", {ddp: 110}, rounds=1, asked=3, started_utc="last")
    again = merge([merged.path, other.path], tmp_path / "again").run
    assert "2 of at least 3 rounds so far" in errors_of(again)[ddp.case_id]


def test_the_launches_of_a_run_that_follows_do_not_make_a_case_of_a_merge_ok(tmp_path: Path) -> None:
    ddp = case_of("ddp", 4)
    small = a_run(tmp_path / "small", {ddp: 300}, rounds=4, crowded=2)
    short = a_run(tmp_path / "short", {SINGLE: 100}, rounds=1, asked=2, started_utc="later")
    merged = merge([short.path, small.path], tmp_path / "crowded").run
    large = a_run(tmp_path / "large", {SINGLE: 100, ddp: 110}, rounds=1, asked=3, started_utc="last")
    again = merge([merged.path, large.path], tmp_path / "again").run
    assert "2 of at least 3 rounds so far" in errors_of(again)[SINGLE.case_id]


def test_a_merge_of_a_version_that_did_not_note_what_was_asked_is_read_as_before(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100}, rounds=2)
    two = a_run(tmp_path / "two", {SINGLE: 100, case_of("ddp", 2): 110}, rounds=1, asked=2, started_utc="b")
    old = merge([one.path, two.path], tmp_path / "old").run
    plan = old.read_json(old.plan)
    del plan["merged"]
    plan["budget"]["rounds_min"] = 2
    old.plan.write_text(json.dumps(plan), encoding="utf-8")
    said = (
        f"measured in 1 of at least 2 rounds so far; resume with: ddpbench sweep {one.path} or ddpbench sweep "
        f"{two.path}, then merge again"
    )
    assert errors_of(old) == {SINGLE.case_id: "", case_of("ddp", 2).case_id: said}
    three = a_run(tmp_path / "three", {SINGLE: 100}, rounds=1, started_utc="last")
    again = merge([old.path, three.path], tmp_path / "again").run
    assert errors_of(again) == {SINGLE.case_id: "", case_of("ddp", 2).case_id: said}


def test_an_interval_is_held_against_what_was_asked_for_its_case(tmp_path: Path) -> None:
    near, far = case_of("ddp", 2), case_of("ddp", 4)
    coarse = a_run(tmp_path / "coarse", {SINGLE: 100, near: 110}, half_width=0.5)
    fine = a_run(tmp_path / "fine", {SINGLE: 100, far: 150}, half_width=0.0001, started_utc="later")
    merged = merge([coarse.path, fine.path], tmp_path / "out").run
    frame = ddpbench.load(merged.path).set_index("case_id")
    assert frame.loc[near.case_id, "ci_reached"]
    assert not frame.loc[far.case_id, "ci_reached"]
    wide = [text for text in summarize(merged).conclusions.validity if "the target half-width" in text]
    assert wide == [
        "2 cases did not reach the target half-width of 0.01 % (single at 1 rank, DDP at 4 ranks)."
    ]


def test_more_runs_than_a_plan_may_name_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [a_run(tmp_path / name, {SINGLE: 100}, rounds=1, started_utc=name) for name in ("a", "b")]
    monkeypatch.setattr("ddpbench.launch.merge.merge.MOST_MERGED", 1)
    with pytest.raises(RequestError, match="2 runs given; a merge takes 1 at most"):
        merge([run.path for run in runs], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_added_up_stays_within_the_limits_of_an_experiment(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name, {SINGLE: 100}, rounds=1, started_utc=name) for name in ("a", "b")]
    for run in runs:
        plan = run.read_json(run.plan)
        plan["budget"] |= {"total": 2e6, "rounds_max": 1000}
        plan["launches"] = [{"round": 999, "case_id": SINGLE.case_id}]
        run.plan.write_text(json.dumps(plan), encoding="utf-8")
        shutil.rmtree(run.case(SINGLE.case_id))
        launches(run, SINGLE, 100, range(999, 1000))
    merged = merge([run.path for run in runs], tmp_path / "out").run
    assert ddpbench.load(merged.path)["status"].tolist() == ["ok"]


def test_a_failed_case_of_a_merge_names_the_run_to_measure_again(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", {SINGLE: 100})
    two = a_run(tmp_path / "two words", {SINGLE: 100, case_of("ddp", 4): 110}, started_utc="later")
    for outcome in two.cases.glob("ddp-*/launch-*/outcome.json"):
        data = json.loads(outcome.read_text()) | {"status": "failed", "error": "made up"}
        outcome.write_text(json.dumps(data))
    error = errors_of(merge([one.path, two.path], tmp_path / "out").run)[case_of("ddp", 4).case_id]
    assert f"measure again with: ddpbench sweep '{two.path}' --retry-failed, then merge again)" in error
    assert str(one.path) not in error


@pytest.mark.parametrize(
    ("context", "command"),
    [
        ({"submitted_nodes": 1}, "ddpbench submit {parent}"),
        ({"planned_nodes": ["a"]}, "the lines of ddpbench plan {path}"),
    ],
)
def test_a_merge_says_how_each_run_is_started_again(
    tmp_path: Path, context: dict[str, Any], command: str
) -> None:
    one = a_run(tmp_path / "sub" / "one", {SINGLE: 100}, rounds=1, asked=2)
    data = one.read_json(one.machine)
    data["context"] |= context
    one.machine.write_text(json.dumps(data), encoding="utf-8")
    two = a_run(tmp_path / "two", {case_of("ddp", 2): 100}, started_utc="later")
    error = errors_of(merge([one.path, two.path], tmp_path / "out").run)[SINGLE.case_id]
    line = command.format(parent=one.path.parent, path=one.path)
    assert error.endswith(f"resume with: {line}, then merge again")


def test_the_merged_run_of_a_submission_is_resumed_by_submitting_again(tmp_path: Path) -> None:
    one = a_run(tmp_path / "nodes-1", {SINGLE: 100}, rounds=1, asked=2)
    two = a_run(tmp_path / "nodes-2", {SINGLE: 100}, rounds=0, asked=2, started_utc="later")
    (tmp_path / "submission.json").write_text("{}")
    error = errors_of(merge([one.path, two.path], tmp_path / "merged").run)[SINGLE.case_id]
    assert error.endswith(f"so far; resume with: ddpbench submit {tmp_path}")
