"""Dilated, shrunk and replayed runs: reported as the job that they represent, and flagged where they fail to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddpbench.analysis import load, summarize
from ddpbench.analysis.read.pace import Pacing, dilation_needed, pacing
from ddpbench.analysis.read.virtual import nominal
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import Block, Held, Pace, RankRecords, RunDir
from ddpbench.spec import Budget, Case
from ddpbench.spec.fabric import BURST_S
from tests.emulated import GRADIENT_BYTES, SLOW_NODE, Emulated, emulated_case, write_emulated
from tests.frames import framed
from tests.report.handmade import fields_of
from tests.synthetic import (
    MS,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_run,
    write_sessions,
)

OF_THE_RUN = ("case_id", "baseline_case_id", "dilation", "shrink", "host_share", "dilation_needed")
"""Columns in which a dilated run and its twin may differ: how they were run, and the host's share of it."""


def summary_of(folder: Path, **common: Any) -> RunSummary:
    cases = [emulated_case("single", 1, **common)]
    cases += [emulated_case(one, 4, **common) for one in ("ddp", "master", "independent")]
    return summarize(write_run(folder, _planned(cases), rounds=5, blocks=2, steps=4, model=Emulated()))


def _planned(cases: list[Case]) -> list[Any]:
    from ddpbench.spec import PlannedCase

    return [PlannedCase(case=case) for case in cases]


def same(a: pd.DataFrame, b: pd.DataFrame, ids: dict[str, str]) -> None:
    names = [name for name in a.columns if name not in (*OF_THE_RUN, "bound_s")]
    assert len(a) == len(b) > 0
    for name in ("case_id", "best_case_id"):
        if name in a.columns:
            assert [ids[one] for one in a[name]] == list(b[name])
            names = [one for one in names if one != name]
    # clocks count whole nanoseconds: a tenth of them is off by a few hundredths of one
    pd.testing.assert_frame_equal(a[names], b[names], rtol=1e-7, check_dtype=False)


def test_a_dilated_and_shrunk_run_gives_its_twins_tables(tmp_path: Path) -> None:
    plain = summary_of(tmp_path / "plain")
    virtual = summary_of(tmp_path / "virtual", dilation=10.0, shrink=4)
    ids = dict(zip(virtual.cases["case_id"], plain.cases["case_id"], strict=True))
    for name in ("cases", "breakdown", "comparisons", "waterfall", "transfers", "network"):
        if len(fields_of(plain)[name]):
            pair = (fields_of(virtual)[name], fields_of(plain)[name])
            same(*(pair if name == "cases" else map(framed, pair)), ids)
    # bursts are in the host's time, and reduce the least time of a dilated job by less: here for two
    # transfers, or for one there and back
    least = (
        framed(virtual.communication.network)["bound_s"].to_numpy()
        - framed(plain.communication.network)["bound_s"].to_numpy()
    )
    assert np.round(least / (BURST_S - BURST_S / 10.0), 6).tolist() == [2.0] * len(least)
    ddp = plain.cases[plain.cases["strategy"] == "ddp"].iloc[0]
    assert ddp["gradient_bytes"] == GRADIENT_BYTES
    comm_s = Emulated().parts(emulated_case("ddp", 4), 1)["comm"] / 1e9
    assert comm_s / 2 > 0.060, "no more can be hidden than the backward pass takes"
    assert ddp["step_time_s"] == pytest.approx(0.093 + comm_s - 0.060, rel=0.02)
    first, second = plain.steps.one_step, virtual.steps.one_step
    assert first is not None
    assert second is not None
    assert second.length_s == pytest.approx(first.length_s)
    assert [lane.transfers[0].bytes for lane in second.lanes] == [
        lane.transfers[0].bytes for lane in first.lanes
    ]
    # a machine's own facts are by its clock
    assert virtual.course.measured_share == plain.course.measured_share
    ratio = virtual.cases["host_share"].astype(float) / plain.cases["host_share"].astype(float)
    assert np.allclose(ratio, 0.1)


def test_network_time_is_on_any_rank_and_counts_overlap_once(tmp_path: Path) -> None:
    # two transfers; the second begins while the first is under way, each ends last on rank 1:
    # first from 10 (its last start) to 40, second from 30 to 60; together 10 to 60, twice
    case = emulated_case("ddp", 2)
    run = RunDir(tmp_path / "run")
    write_plan(run, [case], Budget(rounds_min=5, rounds_max=5))

    def rank(first: tuple[int, int], second: tuple[int, int]) -> RankLaunch:
        steps = []
        for number in range(2):
            at = 10**12 + 200 * MS * (number + 1)
            moved = [
                (bucket, "all_reduce", 1000, at + begin * MS, at + end * MS)
                for bucket, (begin, end) in enumerate((first, second))
            ]
            steps.append((at, at + 100 * MS, [("forward", at, at + 5 * MS)], moved))
        return RankLaunch(steps=steps)

    for number in range(5):
        write_launch(run, case, number, [rank((5, 35), (30, 55)), rank((10, 40), (20, 60))])
    write_sessions(run)
    row = framed(summarize(run).communication.network).iloc[0]
    assert row["network_s"] == pytest.approx(0.050)
    assert row["network_ci_low_s"] == pytest.approx(0.050)


def test_the_formula_has_the_limiting_link_and_the_payload_share(tmp_path: Path) -> None:
    uplink = "1 Gbit/s; 2 racks, uplink 500 Mbit/s"
    cases = [
        emulated_case("ddp", 4),
        emulated_case("master", 4),
        emulated_case("ddp", 4, SLOW_NODE),
        emulated_case("master", 4, SLOW_NODE),
        emulated_case("ddp", 4, uplink),
        emulated_case("master", 4, uplink),
        emulated_case("ddp", 4, nodes=2, ranks_per_node=2),
    ]
    run = write_run(tmp_path / "run", _planned(cases), rounds=5, blocks=1, steps=2, model=Emulated())
    frame = framed(summarize(run).communication.network).set_index("case_id")
    pass_s = GRADIENT_BYTES / (0.95 * 125e6)  # once over a link of 1 Gbit/s
    expected = [1.5 * pass_s, 6 * pass_s, 15 * pass_s, 20 * pass_s, 3 * pass_s, 8 * pass_s]
    for case, seconds in zip(cases, expected, strict=False):
        # beyond rack 0 are two of the master's three: over half the rate they take 2 S each way, against 3 S
        assert frame.loc[case.case_id, "formula_s"] == pytest.approx(seconds), case.label
    assert frame.loc[cases[-1].case_id, "formula"] == ""
    assert np.isnan(frame.loc[cases[-1].case_id, "formula_s"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    return summarize(write_emulated(tmp_path_factory.mktemp("whole") / "run", dilation=10.0, shrink=4))


def row_of(summary: RunSummary, case: Case) -> Any:
    return summary.cases.set_index("case_id").loc[case.case_id]


def test_traffic_of_the_busiest_node_is_held_against_the_formula(whole: RunSummary) -> None:
    common: dict[str, Any] = {"dilation": 10.0, "shrink": 4}
    ring = row_of(whole, emulated_case("ddp", 8, **common))
    assert ring["expected_node_bytes"] == pytest.approx(14 / 8 * GRADIENT_BYTES)
    assert ring["traffic_ratio"] == pytest.approx(1.03, rel=1e-6)
    master = row_of(whole, emulated_case("master", 8, **common))
    assert master["expected_node_bytes"] == 7 * GRADIENT_BYTES
    assert master["node_received_bytes"] == master["node_sent_bytes"]
    assert pd.isna(row_of(whole, emulated_case("single", 1, **common))["node_sent_bytes"])
    assert not [text for text in whole.conclusions.validity if "other bytes" in text]


def test_speedups_on_a_fabric_have_their_base_case_and_a_curve_from_one_rank(whole: RunSummary) -> None:
    common: dict[str, Any] = {"dilation": 10.0, "shrink": 4}
    ddp = row_of(whole, emulated_case("ddp", 16, **common))
    assert ddp["baseline_case_id"] == emulated_case("single", 1, **common).case_id
    assert 0 < ddp["efficiency"] < 1
    curve = next(one for one in whole.steps.laws if one.case.strategy == "ddp" and len(one.case_ids) > 3)
    assert sorted(curve.case_ids) == [1, 2, 4, 8, 16]
    assert "emulated 1 Gbit/s link" in curve.setting
    assert "dilated x10, shrunk /4" in curve.setting


def test_every_finding_on_a_fabric_says_so(whole: RunSummary) -> None:
    assert whole.conclusions.findings
    for finding in whole.conclusions.findings:
        assert "emulated " in finding.line
        assert "replayed computation" in finding.line
        assert "dilated x10" in finding.line
        assert "shrunk /4" in finding.line


def test_validity_tells_what_such_numbers_are_not(whole: RunSummary) -> None:
    text = "\n".join(whole.conclusions.validity)
    for words in (
        "over emulated links",
        "no loss",
        "dilated x10",
        "do not dilate",
        "ran shrunk",
        "interference",
    ):
        assert words in text
    assert "made as root (Linux 6.1.0)" in text
    assert "off by \N{MINUS SIGN}2.2 %" in text


def paced(folder: Path, case: Case, **pace: Any) -> RunSummary:
    run = RunDir(folder)
    write_plan(run, [case], Budget(rounds_min=5, rounds_max=5))
    steps = [[(10 * MS) * int(case.dilation)] * 20] * 2
    for number in range(5):
        ranks = [RankLaunch(blocks=steps, cores=(0, 1), **pace) for _ in range(case.world_size)]
        write_launch(run, case, number, ranks)
    write_sessions(run)
    return summarize(run)


def test_a_replay_that_is_late_is_flagged(tmp_path: Path) -> None:
    case = emulated_case("ddp", 2, dilation=10.0)
    # 1 % of a step of 10 ms is 0.1 ms, or 1 ms of wall time
    early = paced(tmp_path / "early", case, pace=(int(0.99 * MS), MS, MS, 20 * MS))
    late = paced(tmp_path / "late", case, pace=(int(1.01 * MS), MS, MS, 20 * MS))
    assert not early.cases["noise_flag"].notna().any()
    assert list(late.cases["noise_flag"]) == ["late replay 5/5"]
    assert late.cases["lateness_p95_s"].iloc[0] == pytest.approx(0.000101)
    assert any(text.startswith("Late replay in 5 of 5 launches") for text in late.conclusions.validity)


def test_lateness_is_that_of_each_steps_latest_rank(tmp_path: Path) -> None:
    case = emulated_case("ddp", 2)
    run = RunDir(tmp_path / "run")
    write_plan(run, [case], Budget(rounds_min=1, rounds_max=1))
    ranks = [RankLaunch(pace=(late, MS, MS, 0)) for late in (10_000, 70_000)]
    write_launch(run, case, 0, ranks)
    write_sessions(run)
    assert summarize(run).cases["lateness_p95_s"].iloc[0] == pytest.approx(70e-6)


def test_the_dilation_that_hides_the_hosts_work(tmp_path: Path, violating: None) -> None:
    # two ranks of 16 ms processor time in a step of 10 ms on two cores: a share of 1.6 (impossible, but easy to
    # follow), so that half needs 3.2 times
    case = emulated_case("ddp", 2)
    found = paced(tmp_path / "busy", case, pace=(0, 16 * MS, MS, 2 * MS))
    assert found.cases["host_share"].iloc[0] == pytest.approx(1.6)
    assert found.cases["dilation_needed"].iloc[0] == pytest.approx(3.2)
    assert any("set dilation = 3.2:" in text for text in found.conclusions.validity)
    # the same work at a dilation of 10 takes a sixteenth of the cores
    slow = paced(tmp_path / "slow", replace(case, dilation=10.0), pace=(0, 16 * MS, MS, 20 * MS))
    assert slow.cases["host_share"].iloc[0] == pytest.approx(0.16)
    assert slow.cases["dilation_needed"].iloc[0] == pytest.approx(3.2)
    assert not any("set dilation" in text for text in slow.conclusions.validity)


def test_an_optimizer_that_the_profiles_cannot_hide_needs_dilation(tmp_path: Path) -> None:
    found = paced(tmp_path / "run", emulated_case("ddp", 2), pace=(0, MS, 9 * MS, 2 * MS))
    assert found.cases["dilation_needed"].iloc[0] == pytest.approx(4.5)
    assert any(
        "optimizer takes longer" in text and "dilation = 4.5" in text for text in found.conclusions.validity
    )


def own_work(share: float, own_s: float = 0.001, due_s: float = 0.01) -> Pacing:
    return Pacing(lateness_s=np.zeros(1), cpu_s=share, cores_s=1.0, optimizer_s=own_s, due_s=due_s)


def test_a_dilation_of_one_is_the_least() -> None:
    assert dilation_needed(1, [own_work(0.1)]) == 1
    assert dilation_needed(4, [own_work(0.05, due_s=0.04)]) == 1
    assert dilation_needed(4, [own_work(0.25, own_s=0, due_s=0)]) == 2


def test_ranks_that_update_nothing_do_not_count_in_an_updates_mean_time() -> None:
    block = Block(phase="timed", index=0, steps=1, samples=1, start_ns=0, end_ns=10 * MS)
    server, worker = (
        Pace(phase="timed", index=0, lateness_ns=(5,), cpu_ns=MS, optimizer_ns=own, optimizer_due_ns=4 * MS)
        for own in (6 * MS, 0)
    )
    found = pacing([{0: block}] * 3, [{0: server}, {0: worker}, {0: worker}], cores=3, dilation=1)
    assert found is not None
    assert (found.optimizer_s, found.due_s) == (pytest.approx(0.006), pytest.approx(0.004))
    assert dilation_needed(1, [found]) == pytest.approx(1.5)


def test_one_disturbed_launch_does_not_say_which_dilation_is_needed() -> None:
    assert dilation_needed(4, [own_work(0.25), own_work(0.3), own_work(0.9)]) == pytest.approx(2.4)


def test_a_loopback_that_is_not_slowed_as_links_are_is_told(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"nodes": 2, "ranks_per_node": 2, "dilation": 10.0, "shrink": 4}
    given = "1 Gbit/s; local 10 Gbit/s"
    for name, case, warned in (
        ("shared", emulated_case("ddp", 4, **shared), True),
        ("given", emulated_case("ddp", 4, given, **shared), False),
        ("apart", emulated_case("ddp", 4, **(shared | {"nodes": 4, "ranks_per_node": 1})), False),
        ("slow", emulated_case("ddp", 4, **(shared | {"dilation": 1.0, "shrink": 1})), False),
        ("alone", emulated_case("independent", 4, **shared), False),
    ):
        found = paced(tmp_path / name, case)
        assert (
            any("it seems 40 times as fast as it is" in text for text in found.conclusions.validity) is warned
        ), name


def test_a_replays_own_operations_are_not_its_models(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    cases = [emulated_case("single", 1), case_of("single", 1)]
    write_plan(run, cases, Budget(rounds_min=1, rounds_max=1))
    for case in cases:
        write_proof(run, case, flops_per_sample=512)
        write_launch(run, case, 0, [RankLaunch(blocks=[[MS] * 10])])
    replay, real = load(run)["flops_per_sample"]
    assert pd.isna(replay)
    assert real == 512


def test_traffic_beyond_overhead_is_told(tmp_path: Path) -> None:
    case = emulated_case("ddp", 2, "10 Gbit/s")
    for name, ratio, warned in (("less", 0.98, True), ("more", 1.09, True), ("headers", 1.07, False)):
        sent = int(ratio * 3_500_000)  # two ranks: 2(n-1)/n is 1
        found = paced(tmp_path / name, case, traffic=(0, sent, sent))
        assert found.cases["traffic_ratio"].iloc[0] == pytest.approx(ratio, rel=1e-4)
        assert any("moved other bytes" in text for text in found.conclusions.validity) is warned


@pytest.mark.parametrize(
    "content", ["", "{", "{}", "[1, null]", '[{"links": "1 Gbit/s", "asked_bit_per_s": "x"}]']
)
def test_a_damaged_fabric_file_stops_no_report(tmp_path: Path, content: str) -> None:
    run = write_run(tmp_path / "run", _planned([case_of("single", 1)]), rounds=1, blocks=1, steps=1)
    run.fabrics.write_text(content, encoding="utf-8")
    found = summarize(run)
    assert len(found.communication.fabrics) == (1 if "links" in content else 0)


def test_fabrics_made_without_root_say_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", _planned([case_of("single", 1)]), rounds=1, blocks=1, steps=1)
    one = {
        "links": "1 Gbit/s",
        "nodes": 2,
        "privileged": False,
        "asked_bit_per_s": [1e9],
        "reached_bit_per_s": [1.01e9],
    }
    run.fabrics.write_text(json.dumps([one, one | {"dropped": 3}]), encoding="utf-8")
    text = "\n".join(summarize(run).conclusions.validity)
    assert "2 emulated networks were made in an unprivileged user namespace" in text
    assert "off by +1.0 %" in text
    assert "3 packets were dropped" in text


def test_what_a_shrunk_run_s_ranks_hold_is_told_times_the_shrinking() -> None:
    held = Held(parameter_bytes=3, gradient_bytes=2, optimizer_bytes=5)
    (rank,) = nominal(
        [RankRecords(path=Path("rank-00000.attempt-0.jsonl"), records=(held,))],
        emulated_case("ddp", 4, shrink=4),
    )
    assert rank.records == (Held(parameter_bytes=12, gradient_bytes=8, optimizer_bytes=20),)
