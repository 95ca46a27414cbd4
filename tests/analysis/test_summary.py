"""Summary of a run: counts, frames, failures, validity; and the A/A test of a machine."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, astuple
from pathlib import Path

import pytest

from ddpbench.analysis import noise_of, summarize
from ddpbench.analysis.aa_test import CHANGES
from ddpbench.analysis.statistics.resolution import (
    deviation_interval,
    resolved_in_one_sweep,
    resolved_in_turn,
    rounds_to_resolve,
)
from ddpbench.analysis.summary import RunSummary
from ddpbench.cli.results import failed
from ddpbench.errors import RecordError
from ddpbench.records import RunDir
from ddpbench.spec import Budget, PlannedCase
from ddpbench.units import format_about
from tests.frames import framed
from tests.synthetic import (
    MS,
    ORIGIN_NS,
    Outcome,
    RankLaunch,
    alternate,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_run,
    write_sessions,
)

SINGLE, DDP, MASTER = case_of("single", 1), case_of("ddp", 2), case_of("master", 2)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def test_counts_and_failures_are_told_once(run: RunDir) -> None:
    skipped = PlannedCase(case=MASTER, skip_reason="needs torch 2.6")
    write_plan(run, [SINGLE, DDP, skipped], Budget(rounds_min=2, rounds_max=9))
    for number in range(3):
        write_launch(run, SINGLE, number, [RankLaunch()])
    bad = Outcome(
        status="failed", error="rank 1 was killed", phase="warm-up", last_log_line="Killed", measured_s=0
    )
    for number in range(2):
        write_launch(run, DDP, number, outcome=bad)
    write_sessions(run, "interrupted", wall_s=50, measured_s=30)
    summary = summarize(run)
    counts = summary.course.counts
    assert (counts.planned, counts.succeeded, counts.failed) == (6, 3, 2)
    assert (counts.cases, counts.skipped_cases, counts.rounds) == (3, 1, 3)
    assert (summary.course.stop_reason, summary.course.measured_share, summary.course.wall_s) == (
        "interrupted",
        0.6,
        50,
    )
    listed = [
        (failure.label, failure.round, failure.status, failure.phase) for failure in summary.course.failures
    ]
    assert listed == [
        ("ddp · 2 ranks · default buckets", 0, "failed", "warm-up"),
        ("ddp · 2 ranks · default buckets", 1, "failed", "warm-up"),
        ("master · 2 ranks", None, "skipped", ""),
    ]
    assert summary.course.failures[0].last_log_line == "Killed"
    assert any("interrupted; resume with" in text for text in summary.conclusions.validity)
    assert framed(summary.steps.launches)["status"].tolist() == ["ok"] * 3 + ["failed"] * 2
    assert framed(summary.steps.launches)["step_time_s"].isna().tolist() == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("reason", "reported"),
    [
        ("budget", "target half-width of 2 % before the sweep's budget was exhausted ("),
        ("rounds_max", "target half-width of 2 % in as many rounds as were allowed ("),
        ("interrupted", "target half-width of 2 % before the sweep was interrupted ("),
        ("merged", "target half-width of 2 % ("),
    ],
)
def test_wide_intervals_are_told_with_what_ended_the_sweep(run: RunDir, reason: str, reported: str) -> None:
    write_plan(run, [SINGLE], Budget(rounds_min=2, rounds_max=2))
    for number in range(2):
        write_launch(run, SINGLE, number, [RankLaunch(blocks=[[(10 + number) * MS] * 10] * 3)])
    write_sessions(run, reason)
    (found,) = [text for text in summarize(run).conclusions.validity if "half-width" in text]
    assert reported in found
    assert "single at 1 rank" in found


HOLDS = """
import sys
from pathlib import Path
from ddpbench.records import RunDir
with RunDir(Path(sys.argv[1])).locked():
    print(flush=True)
    input()
"""


def test_a_run_that_is_being_measured_is_not_to_be_resumed(run: RunDir) -> None:
    """The report that the sweep itself writes as it ends says how to resume."""
    write_plan(run, [SINGLE, DDP], Budget(rounds_min=30, rounds_max=30))
    for case in (SINGLE, DDP):
        write_launch(run, case, 0, [RankLaunch(blocks=[[10 * MS] * 10])] * case.world_size)

    def said() -> list[str]:
        summary = summarize(run)
        first, *_ = summary.conclusions.validity
        return [*map(str, summary.cases["error"]), first]

    words = [sys.executable, "-c", HOLDS, str(run.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sweep:
        assert sweep.stdout is not None
        sweep.stdout.readline()
        during = said()
        sweep.communicate(b"\n")
    holder = f"a sweep (process {sweep.pid} on {os.uname().nodename})"
    assert [text for text in during if f"being measured by {holder}" not in text or "resume" in text] == []
    with run.locked():
        ending = said()
    assert [text for text in ending if "resume with: ddpbench sweep" not in text] == []
    (run.path / ".lock").write_text(holder, encoding="utf-8")  # it was killed
    assert said() == ending


def test_a_killed_sweep_without_sessions_is_interrupted(run: RunDir) -> None:
    write_plan(run, [SINGLE])
    summary = summarize(run)
    assert (summary.course.stop_reason, summary.course.measured_share, summary.course.wall_s) == (
        "interrupted",
        None,
        0,
    )
    assert summary.cases["status"].tolist() == ["unfinished"]
    assert (summary.course.counts.planned, summary.course.counts.rounds) == (5, 0)  # rounds_min of one case
    assert summary.conclusions.findings == ()
    assert not any((summary.steps.launches, summary.steps.breakdown, summary.steps.comparisons))


def test_a_failed_proof_is_a_failure_with_its_numbers(run: RunDir) -> None:
    write_plan(run, [SINGLE, DDP])
    write_proof(run, DDP, Outcome(status="diverged", error="gradients differ", last_log_line="Diverged"))
    write_sessions(run)
    summary = summarize(run)
    (failure,) = [failure for failure in summary.course.failures if failure.case_id == DDP.case_id]
    assert (failure.status, failure.phase, failure.reason) == ("diverged", "proof", "gradients differ")
    (proof,) = framed(summary.training.proofs).to_dict("records")
    assert (proof["case_id"], proof["passed"], proof["error"]) == (DDP.case_id, False, 0.3)


def test_a_strategy_that_refused_the_model_in_its_proof_counts_as_skipped_with_the_reason(
    run: RunDir,
) -> None:
    why = "ddp cannot train this model: SyncBatchNorm wants a GPU"
    write_plan(run, [SINGLE, DDP], Budget(rounds_min=1, rounds_max=1))
    write_proof(run, DDP, Outcome(status="skipped", error=why))
    write_launch(run, SINGLE, 0, [RankLaunch()])
    write_sessions(run)
    summary = summarize(run)
    assert dict(zip(summary.cases["case_id"], summary.cases["status"], strict=True))[DDP.case_id] == "skipped"
    assert (summary.course.counts.skipped_cases, summary.course.counts.failed) == (1, 0)
    assert summary.planned[DDP.case_id].case_id == DDP.case_id
    assert [line for line in failed(summary) if "skipped" in line] == [f"{line_of(summary)}: skipped: {why}"]


def line_of(summary: RunSummary) -> str:
    return next(failure.label for failure in summary.course.failures if failure.case_id == DDP.case_id)


def test_the_breakdown_adds_up_and_tells_the_overhead_of_instruments(run: RunDir) -> None:
    write_plan(run, [case_of("data_parallel", 2)], Budget(rounds_min=1, rounds_max=1))
    at = ORIGIN_NS
    spans = [
        ("scatter", at, at + MS),
        ("forward", at + MS, at + 5 * MS),
        ("reduce", at + 9 * MS, at + 10 * MS),
    ]
    steps = [(at, at + 12 * MS, spans, [])]
    write_launch(run, case_of("data_parallel", 2), 0, [RankLaunch(steps=steps, samples_per_step=16)])
    write_sessions(run)
    summary = summarize(run)
    (row,) = framed(summary.steps.breakdown).to_dict("records")
    assert row["other_compute"] == pytest.approx(0.002)
    assert row["forward"] == pytest.approx(0.004)
    assert row["not_attributed"] == pytest.approx(0.006)
    assert row["step_time_s"] == pytest.approx(0.012)
    assert row["instrumentation_overhead"] == pytest.approx(0.2)  # timed steps take 10 ms
    assert framed(summary.steps.phases)["span"].tolist() == ["scatter", "forward", "reduce"]
    assert framed(summary.steps.phases)["mean_s"].tolist() == pytest.approx([0.001, 0.004, 0.001])
    assert any("does not describe its timed steps" in text for text in summary.conclusions.validity)


def test_phases_have_the_mean_and_the_median_of_launches(run: RunDir) -> None:
    """A reduce of 1, 1 and 4 ms."""
    write_plan(run, [case_of("data_parallel", 2)], Budget(rounds_min=1, rounds_max=3))
    at = ORIGIN_NS
    for number, length_ms in enumerate((1, 4, 1)):
        steps = [
            (
                at,
                at + 12 * MS,
                [("forward", at, at + MS), ("reduce", at + 9 * MS, at + (9 + length_ms) * MS)],
                [],
            )
        ]
        write_launch(run, case_of("data_parallel", 2), number, [RankLaunch(steps=steps, samples_per_step=16)])
    write_sessions(run)
    phases = framed(summarize(run).steps.phases).set_index("span")
    assert phases.loc["reduce", "mean_s"] == pytest.approx(0.002)
    assert phases.loc["reduce", "median_s"] == pytest.approx(0.001)
    assert phases.loc["forward", "mean_s"] == phases.loc["forward", "median_s"] == pytest.approx(0.001)


def test_shared_loader_cores_and_lost_transfers_are_said(run: RunDir) -> None:
    case = case_of("ddp", 2, loader_workers=1)
    write_plan(run, [case], Budget(rounds_min=1, rounds_max=1))
    at = ORIGIN_NS
    steps = [(at, at + 10 * MS, [("forward", at, at + MS)], [(0, "all_reduce", 8, at, at + MS)])]
    torn = [(at, at + 10 * MS, [("forward", at, at + MS)], [])]
    write_launch(run, case, 0, [RankLaunch(steps=steps), RankLaunch(steps=torn)])
    write_sessions(run)
    validity = "\n".join(summarize(run).conclusions.validity)
    assert "loader workers on the ranks' own cores" in validity
    assert "1 transfer lacks a rank's record" in validity


def test_a_synthetic_run_is_whole(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 17, rounds=5, blocks=2, steps=3, failing=1)
    summary = summarize(run)
    assert summary.cases["status"].tolist() == ["ok"] * 16 + ["failed"]
    parts = framed(summary.steps.breakdown).set_index("case_id")
    parts = parts.drop(columns=[name for name in parts if "_ci_" in name])
    total = parts.drop(columns=["step_time_s", "overlapped_comm", "launches", "instrumentation_overhead"])
    assert total.sum(axis=1).to_numpy() == pytest.approx(parts["step_time_s"].to_numpy())
    assert parts["instrumentation_overhead"].abs().max() < 1e-3  # steps are made equal
    ddp = summary.cases[summary.cases["strategy"] == "ddp"]
    over = ddp[ddp["world_size"] > 1]["overlap_fraction"]
    assert over.to_numpy() == pytest.approx(0.5, abs=0.01)  # as made: half of each is hidden


def test_noise_of_twins_in_two_groups_is_taken_through_their_anchor(run: RunDir) -> None:
    twin = case_of("ddp", 2, replicate=1)
    write_plan(run, [SINGLE, DDP, twin], Budget(rounds_min=3, rounds_max=3))
    for number, (drift, gap) in enumerate(((1.0, 1.01), (2.0, 1.00), (0.5, 0.99))):
        anchor = RankLaunch(blocks=[[10 * MS] * 10, [int(10 * MS * drift)] * 10])
        alternate(write_launch(run, SINGLE, number, [anchor]), [[DDP], [twin]], (0, 1))
        for case, step_ms in ((DDP, 10 * gap), (twin, 10 * drift)):
            launch = RankLaunch(blocks=[[int(step_ms * MS)] * 10])
            alternate(write_launch(run, case, number, [launch] * 2), [[SINGLE]])
    found = noise_of(run)
    logs = [math.log(gap) for gap in (1.01, 1.00, 0.99)]
    assert found.difference.value == pytest.approx(math.exp(sum(logs) / 3) - 1, abs=1e-7)
    assert found.deviation_pairs.value == pytest.approx(statistics.stdev(logs), rel=1e-4)


def test_noise_of_a_machine_by_hand(run: RunDir) -> None:
    twin = case_of("ddp", 2, replicate=1)
    write_plan(run, [SINGLE, DDP, twin], Budget(rounds_min=3, rounds_max=3))
    gaps = (1.01, 1.00, 0.99)
    for number, (drift, gap) in enumerate(zip((1.0, 1.5, 0.8), gaps, strict=True)):
        write_launch(run, SINGLE, number, [RankLaunch()])
        flags = Outcome(wall_s=2.0, server_s=0.5, noise={"steal_fraction": 0.2 if number == 0 else 0.0})
        write_launch(run, DDP, number, [RankLaunch(blocks=[[int(10 * MS * drift * gap)] * 10])] * 2, flags)
        write_launch(
            run,
            twin,
            number,
            [RankLaunch(blocks=[[int(10 * MS * drift)] * 10])] * 2,
            Outcome(wall_s=3.0, server_s=0.5),
        )
    found = noise_of(run)
    logs = [math.log(gap) for gap in gaps]
    mean = sum(logs) / 3
    deviation = math.sqrt(sum((x - mean) ** 2 for x in logs) / 2)
    assert found.rounds == 3
    assert found.round_s == pytest.approx(6.4)  # a round's fork server is started for the third case, too
    assert found.deviation_pairs.value == pytest.approx(deviation)
    assert found.deviation_launches > 0.25  # the drift that pairs cancel
    ratio = math.exp(mean)
    assert found.difference.value == pytest.approx(ratio - 1)
    half = 4.30265 * deviation / math.sqrt(3)  # t(0.975, 2)
    assert found.difference.high == pytest.approx(ratio * math.exp(half) - 1, rel=1e-4)
    assert found.round_in_turn_s == pytest.approx(7.8)  # either side has separate fork servers
    wanted = deviation_interval(deviation, 3)
    assert astuple(found.deviation_pairs) == pytest.approx(astuple(wanted))
    plain = found.to_json()
    assert plain["deviation_pairs"] == found.deviation_pairs.value
    assert plain["deviation_pairs_low"] == found.deviation_pairs.low
    assert plain["difference_high"] == found.difference.high
    # nine rounds fit into a minute; with rounds known to be independent: t(0.975, 8) = 2.30600, t(0.8, 8) =
    # 0.88889
    minute = found.within[0]
    assert minute.seconds == 60
    assert minute.one_sweep == resolved_in_one_sweep(deviation, 9)
    assert minute.one_sweep > 1.4 * (2.30600 + 0.88889) * deviation / math.sqrt(9)
    assert minute.in_turn == resolved_in_turn(deviation, 7)
    assert minute.two_runs is not None
    assert minute.two_runs > 0.15  # the drift between sessions, which more rounds do not narrow
    values = [one.in_turn for one in found.within if one.in_turn is not None]
    assert len(values) == len(found.within)
    assert values == sorted(values, reverse=True)
    times = [one.in_turn_s for one in found.resolve if one.in_turn_s is not None]
    assert [one.change for one in found.resolve] == sorted(CHANGES, reverse=True)
    assert times == sorted(times)
    assert found.resolve[-1].two_runs_s is None
    assert found.disturbed == "steal 1"
    assert "includes 0, as it should" in found.describe()
    assert set(asdict(found)) >= {"rounds", "within", "resolve", "difference"}


def test_noise_tells_what_is_asked_for(run: RunDir) -> None:
    twin = case_of("ddp", 2, replicate=1)
    write_plan(run, [DDP, twin], Budget(rounds_min=6, rounds_max=6))
    for number in range(6):
        for case, gap in ((DDP, 1 + 0.05 * (number % 2)), (twin, 1.02)):
            write_launch(
                run,
                case,
                number,
                [RankLaunch(blocks=[[int(10 * MS * gap)] * 10])] * 2,
                Outcome(wall_s=4.0, server_s=1.0),
            )
    write_sessions(run, wall_s=75.0)  # twelve launches took sixty of them
    found = noise_of(run, within_s=[300.0], changes=[0.03])
    assert (found.round_s, found.round_in_turn_s, found.begin_s) == (10.0, 12.0, 15.0)
    ((within,), (wanted,)) = found.within, found.resolve
    deviation = found.deviation_pairs.value
    assert within.in_turn == resolved_in_turn(deviation, 22)  # 300 s less two times 15, in rounds of 12
    assert within.one_sweep == resolved_in_one_sweep(deviation, 28)
    rounds = rounds_to_resolve(0.03, lambda n: resolved_in_turn(deviation, n))
    assert rounds is not None
    assert wanted.in_turn_s == 30 + 12 * rounds
    text = found.describe()
    assert "5 min" in text
    assert f"{format_about(30 + 12 * rounds)}" in text
    (row,) = [line for line in text.splitlines() if line.strip().startswith("3 %")]
    assert row.endswith(" -")  # two runs never resolve 3 %


def test_noise_needs_a_replicate_and_two_rounds(run: RunDir) -> None:
    write_plan(run, [SINGLE, DDP])
    with pytest.raises(RecordError, match="no two of its cases differ only in replicate"):
        noise_of(run)


def test_noise_of_one_round_is_refused(run: RunDir) -> None:
    twin = case_of("ddp", 2, replicate=1)
    write_plan(run, [DDP, twin], Budget(rounds_min=3, rounds_max=3))
    for case in (DDP, twin):
        write_launch(run, case, 0, [RankLaunch()] * 2)
    with pytest.raises(RecordError, match=r"1 of the 2 rounds needed.*measured in 1 of at least 3"):
        noise_of(run)


def test_equal_records_give_equal_sentences_in_each_process(run: RunDir) -> None:
    everything = {"steal_fraction": 0.2, "foreign_fraction": 0.5, "clock_change": 0.5}
    noise = {**everything, "throttled_s": 1.0, "shared_machine": True}
    write_plan(run, [SINGLE], Budget(rounds_min=3, rounds_max=3))
    for number in range(3):
        write_launch(run, SINGLE, number, [RankLaunch()], Outcome(noise=noise))
    noisy = [
        text.partition(" in 3 of 3")[0]
        for text in summarize(run).conclusions.validity
        if " in 3 of 3" in text
    ]
    # In the order of launches; a set's order would follow the process's hash seed.
    assert noisy == ["Steal", "Foreign load", "Clock change", "Throttled", "Shared machine"]
