"""A sweep whose launches of a round run at once: only one computes at a time, and a failing one leaves the others."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.read.cases import read_cases
from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep import interleaved
from ddpbench.launch.sweep.interleaved import (
    MOST_AT_ONCE,
    InterleavedLaunches,
    Rotation,
    alone_sentence,
    rotations,
)
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.rotating import Rotating
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.launch.watch import LaunchRunner, RunningLaunch
from ddpbench.naming import Namer
from ddpbench.records import LaunchOutcome, Noise, RunDir
from ddpbench.records.plan import read_plan
from ddpbench.runtime.turnstile import Turnstile
from ddpbench.runtime.watchdog import Seen
from ddpbench.spec import Budget, Case, PlannedCase
from tests.failures.conftest import ROOT, experiment_text, worker_processes, workload
from tests.processes import TAG, python_path


class Outcomes(Listener):
    """Keeps the outcomes of measuring launches, by workload, and the warnings and notes."""

    def __init__(self) -> None:
        self.seen: dict[str, list[LaunchOutcome]] = {}
        self.warned: list[str] = []
        self.noted: list[str] = []

    def note(self, text: str) -> None:
        self.noted.append(text)

    def launch_ended(self, entry: PlannedCase, outcome: LaunchOutcome, samples_per_s: float | None) -> None:
        if outcome.purpose == "measure":
            name = "base" if entry.added_as_baseline else entry.case.workload.rpartition(":")[2]
            self.seen.setdefault(name, []).append(outcome)

    def warn(self, text: str) -> None:
        self.warned.append(text)


def swept(folder: Path, names: list[str], *overrides: str, **budget: object) -> tuple[Path, Outcomes]:
    path, listener = folder / "turns.toml", Outcomes()
    budget = {"turns": "blocks", "total": "5 min", **budget}
    path.write_text(experiment_text([workload(name) for name in names], **budget), encoding="utf-8")  # type: ignore[arg-type]
    run = folder / "run"
    Sweep(prepare(SweepRequest(experiment=path, out=run, overrides=overrides)), listener).run()
    return run, listener


def timed(run: Path, number: int) -> list[tuple[str, dict[str, Any]]]:
    """Return rank 0's timed blocks of a round's launches, each with its case, by the time at which they began."""
    found = []
    for launch in (run / "cases").glob(f"*/launch-{number:02}"):
        for line in next(launch.glob("rank-00000*.jsonl")).read_text("utf-8").splitlines():
            record = json.loads(line)
            if record["kind"] == "block" and record["phase"] == "timed":
                found.append((launch.parent.name, record))
    return sorted(found, key=lambda block: block[1]["start_ns"])


def step_ns(blocks: list[dict[str, Any]]) -> float:
    """Return the mean time of a step."""
    return sum(one["end_ns"] - one["start_ns"] for one in blocks) / sum(one["steps"] for one in blocks)


@pytest.mark.multiprocess
def test_blocks_of_a_rounds_launches_alternate_in_a_random_order(tmp_path: Path) -> None:
    run, listener = swept(tmp_path, ["Sound", "Dropout", "BatchNorm"], measured="300 ms")
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    cases = len({outcome.case_id for outcome in outcomes})
    (memory,) = [text for text in listener.noted if " free" in text]
    assert re.match(r"\d+ ranks wait with about [\d.]+ [MG]iB of [\d.]+ GiB free", memory)
    assert cases >= 4, "a base case per workload runs, too"
    assert {outcome.status for outcome in outcomes} == {"ok"}
    assert len(outcomes) == 2 * cases
    assert all(outcome.noise.in_turn for outcome in outcomes)
    ids = {outcome.case_id for outcome in outcomes}
    assert all(outcome.alternated == (tuple(sorted(ids - {outcome.case_id})),) for outcome in outcomes)
    for number in (0, 1):
        blocks = timed(run, number)
        for (_, before), (_, after) in itertools.pairwise(blocks):
            assert before["end_ns"] <= after["start_ns"], "two launches computed at once"
        order = [case for case, _ in blocks]
        fewest = min(map(order.count, set(order)))
        assert fewest >= 5
        cycles = [order[at : at + cases] for at in range(0, (fewest - 1) * cases, cases)]
        assert all(len(set(cycle)) == cases for cycle in cycles), "each had as many turns as any other"
        assert len({tuple(cycle) for cycle in cycles}) > 2, "not always in the same order"
    assert not worker_processes()


@pytest.mark.multiprocess
def test_a_launch_that_fails_in_its_turn_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPBENCH_TEST_TAG", TAG)
    names = ["KilledInTurn", "StopsInTurn", "OutOfMemoryInTurn", "Sound"]
    _, listener = swept(tmp_path, names, hang_timeout="3 s", measured="300 ms")
    killed, stopped = listener.seen["KilledInTurn"][0], listener.seen["StopsInTurn"][0]
    assert (killed.status, killed.failed_rank) == ("failed", 1)
    assert "rank 1 was killed by SIGKILL" in killed.error
    assert (stopped.status, stopped.failed_rank) == ("hung", 1)
    assert "rank 1 is stopped" in stopped.error
    assert listener.seen["OutOfMemoryInTurn"][0].status == "oom"
    for sound in ("Sound", "base"):
        assert [outcome.status for outcome in listener.seen[sound]] == ["ok"] * len(listener.seen[sound])
        assert all(outcome.measured_s > 0.05 for outcome in listener.seen[sound])
    assert len(listener.seen["Sound"]) == 2
    assert not worker_processes()


@pytest.mark.multiprocess
def test_groups_alternate_one_after_another_with_one_launch_of_their_base_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpbench.launch.sweep.rotating.MOST_AT_ONCE", 3)
    axis = "axes.strategy=['ddp', 'master', 'data_parallel', 'zero1']"
    run, listener = swept(tmp_path, ["Sound"], axis, rounds=1, measured="200 ms")
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    assert [outcome.status for outcome in outcomes] == ["ok"] * 5
    base = next(outcome for outcome in outcomes if outcome.case_id.startswith("single"))
    groups = {case: number for number, ids in enumerate(base.alternated) for case in ids}
    assert sorted(groups.values()) == [0, 0, 1, 1]
    for outcome in outcomes:
        if outcome is not base:
            whole = {base.case_id, *base.alternated[groups[outcome.case_id]]}
            assert outcome.alternated == (tuple(sorted(whole - {outcome.case_id})),)
    blocks = timed(run, 0)
    order = [record["group"] if case == base.case_id else groups[case] for case, record in blocks]
    assert order == sorted(order), "one group after another, the base case's blocks among both"
    own = [record for case, record in blocks if case == base.case_id]
    among = [[record for record in own if record["group"] == group] for group in (0, 1)]
    assert min(map(len, among)) >= 2
    timings = {one.case_id: one.timings[0] for one in read_cases(RunDir(run), read_plan(RunDir(run)))}
    assert timings[base.case_id].correction == 1.0
    for case, group in groups.items():
        assert timings[case].correction == pytest.approx(step_ns(own) / step_ns(among[group]))
    sentence = summarize(RunDir(run)).course.alternation
    assert "ran at once, up to 3 at a time" in sentence
    assert "Groups of launches have single at 1 rank in common" in sentence


@pytest.mark.multiprocess
def test_an_interrupted_round_is_repeated_completely(tmp_path: Path) -> None:
    class Interrupts(Outcomes):
        def launch_ended(
            self, entry: PlannedCase, outcome: LaunchOutcome, samples_per_s: float | None
        ) -> None:
            super().launch_ended(entry, outcome, samples_per_s)
            if outcome.purpose == "measure":
                os.kill(os.getpid(), signal.SIGINT)

    path, run = tmp_path / "turns.toml", tmp_path / "run"
    path.write_text(experiment_text([workload("Sound")], turns="blocks", total="5 min"), encoding="utf-8")
    listener: Outcomes = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        Sweep(prepare(SweepRequest(experiment=path, out=run)), listener).run()
    assert not worker_processes()
    assert sum(map(len, listener.seen.values())) == 1
    listener = Outcomes()
    Sweep(prepare(SweepRequest(experiment=run, out=None)), listener).run()
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    assert len(outcomes) == 4, "the launch that had ended alternates with the others again"
    assert all(outcome.status == "ok" and outcome.alternated for outcome in outcomes)
    assert len({outcome.session for outcome in outcomes}) == 1
    listener = Outcomes()
    Sweep(prepare(SweepRequest(experiment=run, out=None)), listener).run()
    assert not listener.seen, "complete rounds are kept"


@pytest.mark.multiprocess
def test_without_a_socket_launches_run_one_after_another_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> Turnstile:
        raise OSError("no sockets here")

    monkeypatch.setattr("ddpbench.launch.sweep.rotating.Turnstile", refused)
    run, listener = swept(tmp_path, ["Sound"])
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    assert [(outcome.status, outcome.noise.in_turn) for outcome in outcomes] == [("ok", False)] * 4
    assert min(record["steps"] for _, record in timed(run, 0)) < 10, "blocks are as short as in company"
    (warning,) = [text for text in listener.warned if "socket" in text]
    assert warning == "launches of a round run one after another: no socket can be made (no sockets here)"


def planned(**settings: Any) -> PlannedCase:
    return PlannedCase(case=Case(workload="mlp:small", **settings), added_as_baseline=False, skip_reason=None)


def of(*groups: list[PlannedCase]) -> Rotation:
    return Rotation(tuple(map(tuple, groups)))


def with_base(count: int, **settings: Any) -> list[PlannedCase]:
    """Return cases of one panel: the base case and bucket caps."""
    cases = [planned(strategy="ddp", world_size=2, bucket_cap_mb=n, **settings) for n in range(1, count)]
    return [*cases, PlannedCase(case=cases[0].case.baseline(), added_as_baseline=True)]


def test_launches_that_cannot_wait_have_rotations_of_their_own() -> None:
    cases = with_base(4)
    loading = planned(strategy="ddp", world_size=2, loader_workers=1)
    linked = planned(strategy="ddp", world_size=2, fabric="1 Gbit/s")
    todo = [cases[2], loading, cases[0], cases[3], linked, cases[1]]
    every = [*cases, loading, linked]
    assert rotations(todo, every, "blocks") == [
        of([cases[2], cases[0], cases[3], cases[1]]),
        of([loading]),
        of([linked]),
    ]
    assert rotations([], [], "blocks") == []
    assert rotations(todo, every, "launches") == [of([entry]) for entry in todo]
    apart = rotations(todo, every, "blocks", alone={cases[0]})
    assert apart == [of([cases[2], cases[3], cases[1]]), of([loading]), of([cases[0]]), of([linked])]


def test_by_auto_a_panel_alternates_as_a_whole_or_not_at_all() -> None:
    cases, others = with_base(3), with_base(3, local_batch=4)
    recovering = planned(strategy="ddp", world_size=2, bucket_cap_mb=9, recovery="restart")
    assert recovering.case.baseline() == cases[-1].case
    todo = [*cases, *others, recovering]
    assert rotations(todo, todo, "auto") == [*(of([entry]) for entry in cases), of(others), of([recovering])]
    assert rotations(todo, todo, "blocks") == [of([*cases, *others]), of([recovering])]
    assert rotations(cases, todo, "auto") == [of([entry]) for entry in cases], "it is in the plan"


def test_groups_of_a_large_panel_have_its_base_case_in_common() -> None:
    cases = with_base(12)
    base, few = cases[-1], with_base(3, local_batch=4)
    todo = [*few, *reversed(cases)]
    large, small = sorted(rotations(todo, [*cases, *few], "blocks"), key=lambda one: -len(one.entries))
    assert small == of(few), "no other panel's launches are added to those that are split"
    assert [len(group) for group in large.groups] == [7, 6]
    assert [group[0] for group in large.groups] == [base, base]
    assert large.groups[0][1:] == tuple(reversed(cases[5:11])), "neighbours in the plan, in the round's order"
    assert sorted(map(id, large.entries)) == sorted(map(id, cases))
    assert all(len(group) <= MOST_AT_ONCE for group in large.groups)
    left = large.only(large.entries[:7])
    assert left.groups == (large.groups[0],)
    assert len(rotations(cases, cases, "blocks", most=1)) == 12
    without = rotations(cases[:-1], cases, "blocks")[0]
    assert [group[0] for group in without.groups] == [cases[0], cases[0]], (
        "another anchor if the base is done"
    )


def test_cases_that_cannot_alternate_are_named_with_the_reason() -> None:
    loading = planned(strategy="ddp", world_size=2, loader_workers=1)
    linked = [planned(strategy="ddp", world_size=2, fabric=f"{n} Gbit/s") for n in range(1, 7)]
    every = [planned(strategy="ddp", world_size=2), loading, *linked]
    sentence = alone_sentence(every, Namer(entry.case for entry in every))
    assert sentence.startswith(
        'budget.turns = "blocks": launches of these cases cannot alternate and run alone: '
    )
    assert "loader workers would continue fetching" in sentence
    assert "and 2 more (an idle link would let a burst through)" in sentence
    assert not alone_sentence(every[:1], Namer(entry.case for entry in every))


class FakeTurnstile:
    """A turnstile whose holder the test sets."""

    serves = True

    def __init__(self) -> None:
        self.holder = ""
        self.expected: set[str] = set()
        self.left: list[str] = []

    def enter(self, _: str) -> None:
        pass

    def has_asked(self, _: str) -> bool:
        return True

    def held_s(self, _: str) -> float:
        return 0.0

    def expect(self, side: str) -> None:
        self.expected.add(side)

    def leave(self, side: str) -> None:
        if side in self.expected:
            self.expected.remove(side)
            return
        assert self.expected, "else another would compute while the launch is concluded"
        self.left.append(side)


class FakeLaunch:
    """A launch that ends when the test says so."""

    server_gone = out_of_memory = ""

    def __init__(self) -> None:
        self.over = self.abandoned = self.concluded = False

    def start(self) -> None:
        pass

    def look(self, _: float) -> None:
        pass

    def abandon(self) -> None:
        self.abandoned = True

    def conclude(self) -> None:
        self.concluded = True


def alternating(*names: str) -> tuple[InterleavedLaunches, FakeTurnstile, dict[str, FakeLaunch]]:
    turnstile, launches = FakeTurnstile(), {name: FakeLaunch() for name in names}
    together = InterleavedLaunches(cast(Turnstile, turnstile))
    for name, launch in launches.items():
        together.start(name, cast(RunningLaunch, launch), lambda *_: None)
    return together, turnstile, launches


def test_a_launch_that_ends_while_it_waits_is_concluded_once_no_other_computes() -> None:
    together, turnstile, launches = alternating("dies", "computes", "waits")
    turnstile.holder, launches["dies"].over = "computes", True
    together._look(0.0)
    assert turnstile.expected, "no other launch gets the turn meanwhile"
    assert not launches["dies"].concluded
    turnstile.holder = ""
    together._look(0.0)
    assert launches["dies"].concluded
    assert (turnstile.left, turnstile.expected) == (["dies"], set())
    launches["waits"].over, turnstile.holder = True, "computes"
    together._look(0.0)
    launches["computes"].over = True
    together.finish()
    assert set(turnstile.left) == {"dies", "computes", "waits"}, "the one that had the turn has ended, too"
    assert not turnstile.expected


def test_a_launch_for_which_memory_ran_out_beside_others_is_repeated_alone() -> None:
    together, _, launches = alternating("large", "other")
    launches["large"].over, launches["large"].out_of_memory = True, "this machine ran out of memory: use less"
    together._look(0.0)
    assert launches["large"].abandoned
    assert not launches["large"].concluded
    assert together.ran_out
    assert together.lost == {"large": "this machine ran out of memory: use less"}
    together, _, launches = alternating("alone")
    launches["alone"].over, launches["alone"].out_of_memory = True, "this machine ran out of memory: use less"
    together.finish()
    assert launches["alone"].concluded, "its own fault"
    assert not together.ran_out


def test_a_launch_ran_out_of_memory_if_the_kernel_killed_its_first_bad_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = SimpleNamespace(count=3)
    monkeypatch.setattr("ddpbench.launch.watch.oom_kills", lambda: kills.count)
    seen = Seen(ranks=2, alive_at=0.0)
    launch = cast(RunningLaunch, SimpleNamespace(_seen=seen, _oom_before=3))

    def found() -> str:
        return cast(str, cast(property, RunningLaunch.out_of_memory).fget(launch))  # type: ignore[misc]

    assert not found()
    seen.exited(1, -signal.SIGKILL, 0.0, 1.0)
    assert seen.killed == 1
    assert not found(), "killed by someone else"
    kills.count = 4
    assert "ran out of" in found()
    other = Seen(ranks=2, alive_at=0.0)
    other.exited(0, 1, 0.0, 1.0)
    launch._seen = other
    assert not found(), "another launch's rank was killed"


def test_what_launches_use_is_noted_once_if_it_was_not_known_and_fewer_alternate_if_it_is_much() -> None:
    notes: list[str] = []
    listener = Listener()
    listener.note = notes.append  # type: ignore[method-assign]
    rotation = of(with_base(6))

    def noted(used: int, *, estimated: bool, ran_out: bool = False) -> int:
        notes.clear()
        rotating = Rotating(cast(Any, None), cast(Any, None), listener, Budget())
        rotating.memory_estimated = estimated
        together = SimpleNamespace(ran_out=ran_out, used_bytes=used * 2**30, free_before=20 * 2**30)
        for _ in range(2):  # only the first rotation is noted
            rotating._note_memory(rotation, cast(InterleavedLaunches, together))
        return rotating.most_at_once

    assert noted(10, estimated=True) == MOST_AT_ONCE
    assert not notes, "an estimate was printed before the start"
    assert noted(10, estimated=False) == MOST_AT_ONCE
    assert notes == ["11 ranks used up to 10 GiB of 20 GiB free"]
    for estimated in (False, True):
        assert noted(19, estimated=estimated) == 5, "each of six used 3.2 GiB, and 16 GiB may be used"
        (note,) = notes
        assert note.startswith("11 ranks used up to 19 GiB of 20 GiB free; at most 5 launches alternate")
    assert noted(1, estimated=True, ran_out=True) == 3


def test_no_further_launch_begins_once_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(bytes=1000)
    monkeypatch.setattr(interleaved, "free_bytes", lambda: free.bytes)

    class Growing(FakeLaunch):
        def start(self) -> None:
            free.bytes -= 300

    together = InterleavedLaunches(cast(Turnstile, FakeTurnstile()))
    begun = 0
    while together.has_room():
        together.start(str(begun), cast(RunningLaunch, Growing()), lambda *_: None)
        begun += 1
    assert begun == 2, "a third would use 900 of 1000 bytes"


def test_launches_without_room_leave_the_round_and_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    turnstile = cast(Turnstile, SimpleNamespace(leave=left.append))
    together = InterleavedLaunches(turnstile)
    monkeypatch.setattr(together, "has_room", lambda: len(together.running) < 2)
    monkeypatch.setattr(
        together, "start", lambda side, *_: together._running.setdefault(side, cast(Any, None))
    )
    made = cast(Any, {name: (lambda: None, lambda *_: None) for name in "abcd"})
    assert together.start_all(made) == 2
    assert left == ["c", "d"]
    assert together.start_all(made) == 0, "the anchor and another still run"
    together._running.clear()
    monkeypatch.setattr(together, "has_room", lambda: False)
    assert together.start_all(made) == 1, "one is always started"


def test_a_launch_that_never_waited_for_its_turn_is_reported_once() -> None:
    warned: list[str] = []
    names = Namer(entry.case for entry in with_base(3))
    progress = SimpleNamespace(plan=SimpleNamespace(names=names), warn=warned.append)
    rotating = Rotating(cast(Any, None), cast(Any, progress), Listener(), Budget())
    entry, other, _ = with_base(3)
    for case, status, waited in (
        (entry, "failed", False),
        (other, "ok", True),
        (entry, "ok", False),
        (entry, "ok", False),
    ):
        outcome = LaunchOutcome(
            case_id="x", round=0, purpose="measure", status=status, noise=Noise(in_turn=waited)
        )
        rotating._ended(case, lambda *_: None, outcome, 1.0)
    (warning,) = warned
    assert warning.startswith("launches of ddp")
    assert warning.endswith(" run alone: its own loader has workers, which keep fetching")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder whose path is short enough for sockets in it, unlike `tmp_path` in a long run of tests."""
    with tempfile.TemporaryDirectory(prefix="turns-") as name:
        yield Path(name)


@pytest.mark.multiprocess
def test_a_killed_sweep_leaves_no_process_and_the_next_one_removes_its_turnstile(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, run = short_folder, tmp_path / "run"
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    path = tmp_path / "turns.toml"
    path.write_text(experiment_text([workload("Sound")], turns="blocks", total="5 min", measured="30 s"))
    sweep = subprocess.Popen(
        [sys.executable, "-m", "ddpbench", "sweep", path, "--out", run],
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": python_path(ROOT)},
    )
    deadline = time.monotonic() + 120
    while not any('"timed"' in file.read_text() for file in run.glob("cases/*/launch-00/rank-00000*.jsonl")):
        assert time.monotonic() < deadline
        assert sweep.poll() is None
        time.sleep(0.1)
    sweep.kill()
    sweep.wait()
    while worker_processes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for folder in temporary.glob("ddpbench-turns-*"):
        os.utime(folder, (0, 0))
    Turnstile().close()
    assert not list(temporary.glob("ddpbench-turns-*"))


def test_as_many_launches_as_fit_into_the_budget_run_at_once() -> None:
    expected = SimpleNamespace(launch_s=lambda seconds: seconds)
    sweep = cast(Sweep, SimpleNamespace(_progress=SimpleNamespace(expected=expected, left_s=25.0)))
    launches = cast(Any, [10.0, 10.0, 10.0])
    assert list(Sweep._fitting(sweep, launches)) == launches[:2]
    assert not Sweep._fitting(sweep, cast(Any, [30.0, 1.0]))


@pytest.mark.multiprocess
def test_launches_whose_server_ends_are_repeated_and_only_the_one_at_fault_fails(tmp_path: Path) -> None:
    _, listener = swept(tmp_path, ["Sound", "KillsItsServer"], rounds=1)
    (killer,) = listener.seen["KillsItsServer"]
    assert (killer.status, killer.alternated) == ("failed", ())
    assert "fork server was killed by SIGKILL" in killer.error
    sound = [*listener.seen["Sound"], *listener.seen["base"]]
    assert [outcome.status for outcome in sound] == ["ok"] * 3
    (sentence,) = [text for text in listener.warned if "repeated" in text]
    assert re.match(
        r"[1-4] launch(es)? of round 1 repeated, one at a time: the fork server was killed", sentence
    )
    assert not worker_processes()


@pytest.mark.multiprocess
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "not stopped"])
def test_a_case_whose_threads_spin_is_stopped_while_it_waits_or_else_named(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not stopped:
        monkeypatch.setattr("ddpbench.runtime.suspension._descriptor_of", lambda _: None)
    run, listener = swept(tmp_path, ["Sound", "Spins"], rounds=1, measured="900 ms")
    assert {outcome.status for each in listener.seen.values() for outcome in each} == {"ok"}
    sentences = [
        text for text in summarize(RunDir(run)).conclusions.validity if "waiting for its turn" in text
    ]
    if stopped:  # it spins for a moment before it is stopped, and until its other rank is there
        found = RunDir(run)
        busy = [
            launch.busy_waiting for case in read_cases(found, read_plan(found)) for launch in case.launches
        ]
        assert 0 < max(filter(None, busy)) < 0.3
        return
    (sentence,) = sentences
    assert sentence.startswith("1 case used cores while waiting for its turn (up to ")
    assert sentence.endswith("(DDP at 2 ranks (Spins)).")


@pytest.mark.multiprocess
def test_cases_with_different_environments_alternate_from_separate_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: dict[str, set[int]] = {}
    begin = LaunchRunner.begin

    def recorded(self: LaunchRunner, server: Any, plan: Any, **arguments: Any) -> RunningLaunch:
        servers.setdefault(plan.case.env["OMP_WAIT_POLICY"], set()).add(server.pid)
        return begin(self, server, plan, **arguments)

    monkeypatch.setattr(LaunchRunner, "begin", recorded)
    axis = 'axes."env.OMP_WAIT_POLICY"=["ACTIVE", "PASSIVE"]'
    _, listener = swept(tmp_path, ["Sound"], axis, rounds=1)
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    assert len(outcomes) >= 3
    assert all(outcome.status == "ok" and outcome.alternated for outcome in outcomes)
    assert servers["ACTIVE"].isdisjoint(servers["PASSIVE"])
