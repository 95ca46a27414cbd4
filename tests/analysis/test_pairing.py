"""Pairs: only launches that one session ran in one round; launches without a pair are reported and repeated."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.analysis import load, noise_of, so_far, summarize
from ddpbench.analysis.rounds import SoFar, width_of
from ddpbench.analysis.scaling.speedups import SpeedupCurve
from ddpbench.analysis.statistics.stats import Comparison, compare, judge, pairs
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.launch.listener import Listener
from ddpbench.launch.merge.merge import merge
from ddpbench.launch.sweep.stopping import StoppingRule
from ddpbench.records import SCHEMA_VERSION, RunDir
from ddpbench.records.plan import read_plan
from ddpbench.records.sessions import Sessions
from ddpbench.runtime.progress import Done
from ddpbench.spec import Budget, Case
from tests.frames import framed
from tests.synthetic import (
    MS,
    ORIGIN_NS,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_sessions,
)

SINGLE, DDP, TWIN = case_of("single", 1), case_of("ddp", 2), case_of("ddp", 2, replicate=1)


def timing(number: int, seconds: float, session: str = "") -> Timing:
    return Timing(round=number, time_s=seconds, steps=1, samples=1, session=session)


def test_launches_pair_only_when_one_session_ran_them_in_one_round() -> None:
    a = [timing(0, 1, "x"), timing(1, 2, "x"), timing(2, 3, "y")]
    b = [timing(2, 6, "y"), timing(1, 5, "y"), timing(0, 4, "x")]
    assert [(mine.time_s, other.time_s) for mine, other in pairs(a, b)] == [(1, 4), (3, 6)]
    found = compare(a, b)
    assert found is not None
    assert (found.rounds, found.paired) == (2, True)
    assert math.exp(found.log) == pytest.approx(math.sqrt(1 / 4 * 3 / 6))


def without_sessions(timings: Iterable[Timing]) -> list[Timing]:
    """Return timings with the previous matching: by the round's number."""
    return [dataclasses.replace(one, session="") for one in timings]


def differs(found: Comparison | None) -> bool:
    assert found is not None
    return judge(found).verdict in ("faster", "slower")


def slowed(number: int, session: str, drift: dict[tuple[int, str], float], rng: random.Random) -> Timing:
    """Return a launch with 1 % of separate noise and 2 % that it shares with its session's others of the round."""
    shared = drift.setdefault((number, session), rng.gauss(0, 0.02))
    slower = 1.05 if session == "later" else 1.0
    return timing(number, slower * math.exp(shared + rng.gauss(0, 0.01)), session)


def test_an_identical_case_on_a_machine_that_was_slower_later_is_not_called_different() -> None:
    """Two equal cases, of which one fails in four launches of five; they are repeated, 5 % slower.

    The rounds that the second session then adds make five pairs again. An interval of 95 % is wrong in 5 % of runs:
    over 4,000 of them in 6 % at most, by three standard deviations.
    """
    rng = random.Random(5)
    runs, before, after = 4000, 0, 0
    for _ in range(runs):
        drift: dict[tuple[int, str], float] = {}
        a = [slowed(number, "first", drift, rng) for number in range(5)]
        b = [slowed(number, "later" if rng.random() < 0.8 else "first", drift, rng) for number in range(5)]
        before += differs(compare(without_sessions(a), without_sessions(b)))
        while len(pairs(a, b)) < 5:
            a.append(slowed(len(a), "later", drift, rng))
            b.append(slowed(len(b), "later", drift, rng))
        after += differs(compare(a, b))
    assert before / runs > 0.2
    assert after / runs < 0.06


def test_the_stopping_rule_waits_for_rounds_of_all_cases_together() -> None:
    whole = frozenset((number, "x") for number in range(4))
    found = SoFar(
        widths={},
        rounds={"a": whole | {(4, "x")}, "b": whole | {(4, "y")}, "c": whole | {(4, "y")}, "d": frozenset()},
    )
    assert sorted(found.apart(["a", "b", "c"], 5)) == ["a", "b", "c"]  # a shares four rounds with each
    assert found.apart(["b", "c"], 5) == []
    assert found.apart(["a", "b", "c"], 4) == []
    assert sorted(found.apart(["a", "d"], 1)) == ["a", "d"]
    assert found.apart(["a"], 6) == ["a"]  # too few by itself


def test_a_case_that_shares_no_round_has_no_half_width() -> None:
    """Welch's interval would be narrow, and would end the sweep."""
    mine, other = [timing(n, 1.0, "x") for n in range(5)], [timing(n, 1.0, "y") for n in range(5)]
    assert width_of(mine, other) is None
    assert width_of(mine, [timing(n, 1.0, "x") for n in range(5)]) == 0


def run_of(path: Path, launches: dict[Case, list[tuple[int, str, float]]], *, rounds: int = 5) -> RunDir:
    """Write launches of each case: (round, session, step in ms), half of which is forward."""
    run = RunDir(path)
    write_plan(run, list(launches), Budget(rounds_min=rounds, rounds_max=2 * rounds))
    for case, each in launches.items():
        write_proof(run, case)
        for number, session, step_ms in each:
            step = round(step_ms * MS)
            spans = [("forward", ORIGIN_NS, ORIGIN_NS + step // 2)]
            rank = RankLaunch(blocks=[[step] * 10], steps=[(ORIGIN_NS, ORIGIN_NS + step, spans, [])])
            folder = write_launch(run, case, number, [rank] * case.world_size)
            edit(folder / "outcome.json", session=session)
    write_sessions(run)
    return run


def reason_before(run: RunDir, number: int) -> str:
    """Return why a sweep of this run would end before that round, or an empty text."""
    plan: Any = read_plan(run)
    done = Done(run, plan)
    done.read()
    expected: Any = SimpleNamespace(round_s=len)
    return StoppingRule(run, done, expected, plan.budget, Listener()).reason(number, time.monotonic())


def test_a_sweep_goes_on_until_rounds_min_rounds_were_run_together(tmp_path: Path) -> None:
    """Five rounds of each case, all equal, of which two sessions shared the last: four pairs."""
    whole = [(n, "one", 100.0) for n in range(5)]
    split = [*whole[:4], (4, "two", 100.0)]
    assert reason_before(run_of(tmp_path / "whole", {SINGLE: whole, DDP: whole}), 5) == "target reached"
    assert reason_before(run_of(tmp_path / "split", {SINGLE: whole, DDP: split}), 5) == ""
    more = [(5, "two", 100.0)]
    assert (
        reason_before(run_of(tmp_path / "more", {SINGLE: whole + more, DDP: split + more}), 6)
        == "target reached"
    )


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}), encoding="utf-8")


def resumed(path: Path) -> RunDir:
    """Return a run interrupted in round 4, after `single`; later launches run at half the speed."""
    first = [(number, "one", 100.0 + number) for number in range(4)]
    return run_of(
        path,
        {
            SINGLE: [*first, (4, "two", 200.0), (5, "two", 210.0)],
            DDP: [*((n, s, 1.1 * ms) for n, s, ms in first), (4, "one", 115.0), (5, "two", 231.0)],
        },
    )


def test_ratios_and_losses_are_of_pairs_alone(tmp_path: Path) -> None:
    run = resumed(tmp_path / "run")
    row = load(run).set_index("case_id").loc[DDP.case_id]
    single = 100 + 101 + 102 + 103 + 210
    assert row["launches"] == 6
    assert row["speedup"] == pytest.approx(2 * single / (1.1 * single))
    assert row["speedup_ci_high"] == pytest.approx(row["speedup"])  # 1.1 in every pair
    # all six launches belong to the case
    assert row["step_time_s"] == pytest.approx(1.1 * (102 + 103) / 2 / 1000)
    found = so_far(run)
    assert found.widths[DDP.case_id] == pytest.approx(0, abs=1e-9)
    assert found.apart([SINGLE.case_id, DDP.case_id], 5) == []
    assert len(found.apart([SINGLE.case_id, DDP.case_id], 6)) == 2


def test_validity_tells_what_was_not_run_together(tmp_path: Path) -> None:
    summary = summarize(resumed(tmp_path / "run"))
    (sentence,) = [text for text in summary.conclusions.validity if "not run together" in text]
    assert sentence.startswith(
        "1 launch was not run together with the rest of its round: 1 round was completed by "
    )
    assert (
        "It counts for its own case, and in comparisons only with launches of the same session and round"
        in sentence
    )
    assert framed(summary.steps.launches)["session"].tolist() == ["one"] * 4 + ["two"] * 2 + ["one"] * 5 + [
        "two"
    ]
    whole = run_of(
        tmp_path / "whole", {case: [(n, f"{n // 3}", 100.0) for n in range(5)] for case in (SINGLE, DDP)}
    )
    assert not any("not run together" in text for text in summarize(whole).conclusions.validity)


def test_findings_say_where_too_few_pairs_are_left(tmp_path: Path) -> None:
    master = case_of("master", 2)
    together, redone = [(n, "one", 100.0) for n in range(5)], [(n, "two", 110.0) for n in range(5)]
    apart = run_of(tmp_path / "apart", {SINGLE: together, DDP: together, master: redone})
    text = " ".join(finding.line for finding in summarize(apart).conclusions.findings)
    assert "share no rounds, as after a merge or a resume" in text
    assert "master is" not in text
    some = run_of(tmp_path / "some", {SINGLE: together, DDP: together, master: [*together[:3], *redone[3:]]})
    text = " ".join(finding.line for finding in summarize(some).conclusions.findings)
    assert "at most 3 rounds of both in one session" in text


def test_losses_of_efficiency_are_within_pairs(tmp_path: Path) -> None:
    table = framed(summarize(resumed(tmp_path / "run")).steps.waterfall).set_index(["case_id", "item"])
    assert table.loc[DDP.case_id, "computation"]["rounds"] == 5


def test_an_a_against_a_run_is_of_pairs(tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "run",
        {
            DDP: [(0, "one", 100.0), (1, "one", 101.0), (2, "one", 102.0), (3, "two", 200.0)],
            TWIN: [(0, "one", 101.0), (1, "one", 101.0), (2, "two", 300.0), (3, "two", 199.0)],
        },
        rounds=2,
    )
    found = noise_of(run)
    assert found.rounds == 3
    logs = [math.log(100 / 101), 0.0, math.log(200 / 199)]
    mean = sum(logs) / 3
    assert found.deviation_pairs.value == pytest.approx(math.sqrt(sum((one - mean) ** 2 for one in logs) / 2))


def test_laws_take_pairs_and_keep_what_two_sessions_ran_of_a_round_apart() -> None:
    base = tuple(timing(n, 1.0, "one") for n in range(6))
    curve = SpeedupCurve(
        scaling="weak",
        base=base,
        sizes={
            2: tuple(timing(n, 1.0, "one") for n in range(6)),
            4: tuple(timing(n, 1.0, "two" if n == 5 else "one") for n in range(6)),
        },
    )
    assert [len(both) for both in curve.paired.values()] == [6, 5]
    assert curve.strata == [[(n, "one") for n in range(6)]]  # the lonely sixth joins the largest


def old_sessions(run: RunDir, ends: list[tuple[str, float]]) -> None:
    """Write sessions.json as older versions did: `started_utc` is the end."""
    entries = [
        {"started_utc": f"2026-03-04T{end}+00:00", "wall_s": wall_s, "launches": 3, "stop_reason": "x"}
        for end, wall_s in ends
    ]
    run.sessions.write_text(
        json.dumps({"schema_version": SCHEMA_VERSION, "sessions": entries}), encoding="utf-8"
    )


def test_launches_of_older_versions_are_placed_by_their_time(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    old_sessions(run, [("10:10:00", 600.0), ("12:05:00", 299.6)])
    found = Sessions.of(run)

    def at(time: str) -> str:
        return found.session_of("", f"2026-03-04T{time}+00:00")

    assert at("10:00:00") == at("10:09:59") == at("10:10:00")
    assert at("12:00:00") == at("12:04:00")
    # launches in between, or after, belong to a session that was killed
    assert len({at("09:00:00"), at("10:05:00"), at("11:00:00"), at("12:01:00"), at("12:06:00")}) == 5
    assert at("11:00:00") == at("11:30:00")
    assert found.session_of("ab12", "2026-03-04T10:05:00+00:00") == "ab12"
    assert found.session_of("", "") == found.session_of("", "yesterday") == ""
    first = "0001-01-01T00:00:00+00:00"  # no date exists for the moment two seconds before it
    old_sessions(run, [("10:10:00", 0.0)])
    text = run.sessions.read_text(encoding="utf-8").replace("2026-03-04T10:10:00+00:00", first)
    run.sessions.write_text(text, encoding="utf-8")
    assert Sessions.of(run).session_of("", first) == ""
    run.sessions.write_text("{", encoding="utf-8")
    assert Sessions.of(run) == Sessions()


def test_a_run_of_an_older_version_is_paired_by_session_too(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", {case: [(n, "", 100.0 + n) for n in range(6)] for case in (SINGLE, DDP)})
    for path in run.path.glob("cases/*/launch-*/outcome.json"):
        data = json.loads(path.read_text())
        del data["session"]
        later = data["round"] == 5 or (data["round"] == 4 and data["case_id"] == DDP.case_id)
        hour = 12 if later else 10
        path.write_text(
            json.dumps({**data, "started_utc": f"2026-03-04T{hour}:02:00+00:00"}), encoding="utf-8"
        )
    old_sessions(run, [("10:10:00", 600.0), ("12:05:00", 300.0)])
    assert any("1 launch was not run together" in text for text in summarize(run).conclusions.validity)
    found = so_far(run)
    assert [len(rounds) for rounds in found.rounds.values()] == [6, 6]
    assert len(found.apart([SINGLE.case_id, DDP.case_id], 6)) == 2
    assert found.apart([SINGLE.case_id, DDP.case_id], 5) == []
    # a merge, whose sessions come from several runs, keeps them apart
    other = run_of(tmp_path / "other", {SINGLE: [(n, "", 90.0) for n in range(5)]})
    edit(other.machine, context={"started_utc": "another", "host": "b"})
    merged = merge([run.path, other.path], tmp_path / "both").run
    assert any("1 launch was not run together" in text for text in summarize(merged).conclusions.validity)
    sessions = {
        json.loads(path.read_text())["session"] for path in merged.path.glob("cases/*/launch-*/outcome.json")
    }
    assert len(sessions) == 2  # #1 and #2; rounds of the other run have other numbers
