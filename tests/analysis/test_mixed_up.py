"""Misplaced records are left out, counted and reported; nothing else changes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ddpbench
from ddpbench.analysis import summarize
from ddpbench.analysis.rounds import so_far
from ddpbench.cli import run as command
from ddpbench.records import LaunchRequest, RunDir
from ddpbench.records.plan import read_plan
from ddpbench.runtime.finished import finished_launches
from ddpbench.spec import Budget, Case
from tests.frames import framed
from tests.synthetic import (
    MS,
    RUN_ID,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_sessions,
)

DDP, SINGLE = case_of("ddp", 2), case_of("single", 1)
ROUNDS = 5


def a_run(path: Path, ddp_ms: int = 20) -> RunDir:
    run = RunDir(path)
    write_plan(run, [SINGLE, DDP], Budget(rounds_min=ROUNDS, rounds_max=ROUNDS))
    for case, step_ms in ((SINGLE, 10), (DDP, ddp_ms)):
        write_proof(run, case)
        for number in range(ROUNDS):
            step_ns = (step_ms * 100 + number) * MS // 100
            write_launch(run, case, number, [RankLaunch(blocks=[[step_ns] * 10])] * case.world_size)
    write_sessions(run)
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return a_run(tmp_path / "run")


def launch(run: RunDir, case: Case, number: int) -> Path:
    return run.launch(case.case_id, "measure", number).path


def left_out_texts(run: RunDir) -> list[str]:
    summary = summarize(run)
    assert set(summary.conclusions.left_out) <= set(summary.conclusions.validity)
    return list(summary.conclusions.left_out)


def without_new_fields(run: RunDir) -> None:
    """Turn the records into those of an older version."""
    for path in [run.plan, *run.cases.rglob("*.json*")]:
        lines = (
            path.read_text(encoding="utf-8").splitlines()
            if path.suffix == ".jsonl"
            else [path.read_text(encoding="utf-8")]
        )
        values = [json.loads(line) for line in lines]
        for value in values:
            value.pop("run_id", None)
            if value.get("kind") == "start":
                for name in ("case_id", "round", "ranks"):
                    value.pop(name, None)
        path.write_text("".join(f"{json.dumps(value)}\n" for value in values), encoding="utf-8")


def change_start(path: Path, **changes: Any) -> None:
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    path.write_text(json.dumps({**json.loads(first), **changes}) + "\n" + rest, encoding="utf-8")


def same_but(before: pd.DataFrame, after: pd.DataFrame, launches: list[int]) -> None:
    assert list(after["launches"]) == launches
    columns = ["case_id", "status", "gradient_bytes", "world_size"]
    assert after[columns].equals(before[columns])


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
def test_swapped_launches_are_left_out_and_said(
    run: RunDir, old: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if old:
        without_new_fields(run)
    before = ddpbench.load(run.path)
    assert left_out_texts(run) == []
    one, other = launch(run, SINGLE, 1), launch(run, DDP, 1)
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    after = ddpbench.load(run.path)
    assert list(after["launches"]) == [4, 4]
    assert after["samples_per_s"].to_numpy() == pytest.approx(before["samples_per_s"].to_numpy(), rel=0.01)
    (sentence,) = left_out_texts(run)
    assert sentence.startswith(
        "2 launches are left out: their folders hold another launch's records (the first: cases/"
    )
    assert f"it is of case {DDP.case_id!r}" in sentence
    assert command(["report", str(run.path)]) == 1  # cases have too few rounds now
    assert sentence in capsys.readouterr().err
    assert "2 launches are left out" in run.report.read_text(encoding="utf-8")
    assert set(so_far(run).rounds[DDP.case_id]) == set(so_far(run).rounds[SINGLE.case_id])
    outcomes, _ = finished_launches(run, [SINGLE, DDP], "" if old else RUN_ID)
    assert (DDP.case_id, "measure", 1) not in outcomes  # a resumed sweep repeats it


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
def test_what_has_no_place_of_its_own_changes_nothing(run: RunDir, old: bool) -> None:
    if old:
        without_new_fields(run)
    before, widths = ddpbench.load(run.path), so_far(run)
    first = launch(run, DDP, 0)
    shutil.copy(first / "rank-00000.attempt-0.jsonl", first / "rank-00007.attempt-0.jsonl")
    shutil.copy(first / "rank-00000.attempt-0.jsonl", first / "rank-0000\u00b2.attempt-0.jsonl")
    shutil.copy(first / "rank-00000.attempt-0.jsonl", first / "rank-00000.attempt-1.jsonl")
    for name in ("launch-000", "launch-\u00b2", "launch-07", "launch-0"):
        shutil.copytree(first, first.with_name(name))
    shutil.copytree(run.case(DDP.case_id), run.case("ddp-w9-00000000"))
    run.set_aside(run.launch(SINGLE.case_id, "proof"))
    write_proof(run, SINGLE)
    if old:
        without_new_fields(run)
    assert ddpbench.load(run.path).equals(before)
    assert so_far(run) == widths
    assert left_out_texts(run) == [
        f"1 launch is left out: it is not in the plan (cases/{DDP.case_id}/launch-07).",
        f"3 folders are left out: their names are not names of launches (the first: cases/{DDP.case_id}/launch-0).",
        (
            "3 ranks' files are left out: they do not belong to their launches (the first: "
            f"cases/{DDP.case_id}/launch-00/rank-00000.attempt-1.jsonl: it is of rank 0, attempt 0)."
        ),
        "1 folder is left out: the plan has no such case (cases/ddp-w9-00000000).",
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"round": 3}, "it is of round 3"),
        ({"case_id": "ddp-w4-00000000"}, "it is of case 'ddp-w4-00000000'"),
        ({"run_id": "another"}, "it is of another run"),
        ({"run_id": ""}, "it is of another run"),
        ({"ranks": 4}, "it is of a launch of 4 ranks, not of 2"),
        ({"rank": 0}, "it is of rank 0, attempt 0"),
        ({"world_size": 4}, "it is of a job of 4 ranks, and the case has 2"),
    ],
)
def test_a_rank_of_another_launch_is_left_out_and_its_launch_fails(
    run: RunDir, changes: dict[str, Any], why: str
) -> None:
    path = launch(run, DDP, 2) / "rank-00001.attempt-0.jsonl"
    change_start(path, **changes)
    summary = summarize(run)
    (failure,) = summary.course.failures
    assert failure.reason == f"damaged records: {path}: {why}"
    assert summary.cases["error"].dropna().iloc[0].count("--retry-failed") == 1
    assert summary.conclusions.left_out == (
        (
            "1 rank's file is left out: it does not belong to its launch "
            f"(cases/{DDP.case_id}/launch-02/{path.name}: {why})."
        ),
    )
    assert len(so_far(run).rounds[DDP.case_id]) == ROUNDS - 1
    assert finished_launches(run, [DDP], RUN_ID)[1] == {(DDP.case_id, "measure", 2)}


@pytest.mark.parametrize("emptied", [False, True])
def test_a_rank_whose_records_are_gone_is_measured_again_when_asked(run: RunDir, emptied: bool) -> None:
    """The report advises --retry-failed."""
    assert finished_launches(run, [SINGLE, DDP], RUN_ID)[1] == set()
    path = launch(run, DDP, 2) / "rank-00001.attempt-0.jsonl"
    path.unlink()
    if emptied:
        path.touch()
    summary = summarize(run)
    (failure,) = summary.course.failures
    assert "its records hold no timed steps of every rank" in failure.reason
    assert "--retry-failed" in summary.cases["error"].dropna().iloc[0]
    assert finished_launches(run, [SINGLE, DDP], RUN_ID)[1] == {(DDP.case_id, "measure", 2)}


def test_a_launch_of_another_run_is_left_out(run: RunDir, tmp_path: Path) -> None:
    other = a_run(tmp_path / "other", ddp_ms=40)
    for path in other.cases.rglob("*.json*"):
        path.write_text(path.read_text(encoding="utf-8").replace(RUN_ID, "000000000000"), encoding="utf-8")
    shutil.rmtree(launch(run, DDP, 0))
    shutil.copytree(launch(other, DDP, 0), launch(run, DDP, 0))
    assert [text for text in left_out_texts(run) if "it is of another run" in text]
    assert list(ddpbench.load(run.path)["launches"]) == [5, 4]


def test_a_proof_may_be_of_a_case_that_trains_alike(tmp_path: Path) -> None:
    slow, fast, other = (
        case_of("ddp", 2, nodes=2, ranks_per_node=1, fabric=fabric, compute="replayed", local_batch=batch)
        for fabric, batch in (("100 Mbit/s", 8), ("1 Gbit/s", 8), ("1 Gbit/s", 16))
    )
    run = RunDir(tmp_path / "run")
    write_plan(run, [slow, fast, other], Budget(rounds_min=1, rounds_max=1))
    write_proof(run, fast)
    proof = run.launch(fast.case_id, "proof")
    LaunchRequest(case=fast, purpose="proof").write(proof.request)
    for case in (slow, other):
        shutil.copytree(proof.path, run.launch(case.case_id, "proof").path)
        write_launch(run, case, 0, [RankLaunch(samples_per_step=case.local_batch)] * 2)
    write_launch(run, fast, 0, [RankLaunch()] * 2)
    summary = summarize(run)
    assert set(framed(summary.training.proofs)["case_id"]) == {slow.case_id, fast.case_id}
    assert len(summary.conclusions.left_out) == 1
    assert f"cases/{other.case_id}/proof: it is of case {fast.case_id!r}" in summary.conclusions.left_out[0]


def test_a_plan_and_its_request_carry_the_run_s_id(run: RunDir) -> None:
    assert read_plan(run).run_id == RUN_ID
    request = LaunchRequest(case=DDP, purpose="measure", round=3, run_id="abc")
    assert LaunchRequest.from_json(request.to_json()) == request
    older = request.to_json()
    del older["run_id"]
    assert LaunchRequest.from_json(older) == replace(request, run_id="")
