"""A sweep whose launches of a round run at once: only one computes at a time, and a failing one leaves the others."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep import interleaved
from ddpbench.launch.sweep.interleaved import MOST_AT_ONCE, InterleavedLaunches, interleaved_groups
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.launch.watch import RunningLaunch
from ddpbench.records import LaunchOutcome
from ddpbench.runtime.turnstile import Turnstile
from ddpbench.spec import Case, PlannedCase
from tests.failures.conftest import experiment_text, worker_processes, workload
from tests.processes import TAG


class Outcomes(Listener):
    """Keeps the outcomes of measuring launches, by workload, and the warnings."""

    def __init__(self) -> None:
        self.seen: dict[str, list[LaunchOutcome]] = {}
        self.warned: list[str] = []

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


def blocks_of(run: Path, number: int) -> list[tuple[int, int, str]]:
    """Return when each timed block of a round's launches began and ended on rank 0, ns, and of which case."""
    found = []
    for launch in (run / "cases").glob(f"*/launch-{number:02}"):
        for line in next(launch.glob("rank-00000*.jsonl")).read_text("utf-8").splitlines():
            record = json.loads(line)
            if record["kind"] == "block" and record["phase"] == "timed":
                found.append((record["start_ns"], record["end_ns"], launch.parent.name))
    return sorted(found)


@pytest.mark.multiprocess
def test_blocks_of_a_rounds_launches_alternate_in_a_random_order(tmp_path: Path) -> None:
    run, listener = swept(tmp_path, ["Sound", "Dropout", "BatchNorm"], measured="300 ms")
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    cases = len({outcome.case_id for outcome in outcomes})
    assert cases >= 4, "a base case per workload runs, too"
    assert {outcome.status for outcome in outcomes} == {"ok"}
    assert len(outcomes) == 2 * cases
    assert all(outcome.noise.in_turn for outcome in outcomes)
    for number in (0, 1):
        blocks = blocks_of(run, number)
        for before, after in itertools.pairwise(blocks):
            assert before[1] <= after[0], "two launches computed at once"
        order = [case for *_, case in blocks]
        fewest = min(map(order.count, set(order)))
        assert fewest >= 10
        cycles = [order[at : at + cases] for at in range(0, (fewest - 1) * cases, cases)]
        assert all(len(set(cycle)) == cases for cycle in cycles), "each had as many turns as any other"
        assert len({tuple(cycle) for cycle in cycles}) > 2, "not always in the same order"
    assert not worker_processes()


@pytest.mark.multiprocess
def test_a_launch_that_fails_in_its_turn_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPBENCH_TEST_TAG", TAG)
    _, listener = swept(tmp_path, ["KilledInTurn", "StopsInTurn", "Sound"], hang_timeout="3 s")
    killed, stopped = listener.seen["KilledInTurn"][0], listener.seen["StopsInTurn"][0]
    assert (killed.status, killed.failed_rank) == ("failed", 1)
    assert "rank 1 was killed by SIGKILL" in killed.error
    assert (stopped.status, stopped.failed_rank) == ("hung", 1)
    assert "rank 1 is stopped" in stopped.error
    for sound in ("Sound", "base"):
        assert [outcome.status for outcome in listener.seen[sound]] == ["ok"] * len(listener.seen[sound])
        assert all(outcome.measured_s > 0.05 for outcome in listener.seen[sound])
    assert len(listener.seen["Sound"]) == 2
    assert not worker_processes()


@pytest.mark.multiprocess
def test_an_interrupted_round_is_resumed_with_the_launches_that_are_left(tmp_path: Path) -> None:
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
    first = sum(map(len, listener.seen.values()))
    listener = Outcomes()
    Sweep(prepare(SweepRequest(experiment=run, out=None)), listener).run()
    assert first + sum(map(len, listener.seen.values())) == 4
    assert {outcome.status for each in listener.seen.values() for outcome in each} == {"ok"}


@pytest.mark.multiprocess
def test_without_a_socket_launches_run_one_after_another_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Turnstile:
        raise OSError("no sockets here")

    monkeypatch.setattr("ddpbench.launch.sweep.launching.Turnstile", refused)
    _, listener = swept(tmp_path, ["Sound"])
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    assert [(outcome.status, outcome.noise.in_turn) for outcome in outcomes] == [("ok", False)] * 4
    (warning,) = [text for text in listener.warned if "socket" in text]
    assert warning == "launches of a round run one after another: no socket can be made (no sockets here)"


def planned(**settings: Any) -> PlannedCase:
    return PlannedCase(case=Case(workload="mlp:small", **settings), added_as_baseline=False, skip_reason=None)


def test_launches_that_cannot_wait_are_groups_of_their_own() -> None:
    cases = [planned(strategy="ddp", world_size=2, local_batch=n) for n in range(1, 11)]
    loading = planned(strategy="ddp", world_size=2, loader_workers=1)
    shuffled = [*cases[5:], loading, *cases[:5]]
    groups = interleaved_groups(shuffled, [*cases, loading])
    assert groups == [cases[5:], [loading], cases[:5]], "neighbours in the plan, in the round's order"
    assert all(len(group) <= MOST_AT_ONCE for group in groups)
    linked = planned(strategy="ddp", world_size=2, fabric="1 Gbit/s")
    assert interleaved_groups([loading, linked], [loading, linked]) == [[loading], [linked]]
    assert interleaved_groups([], []) == []


def test_no_further_launch_begins_once_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(bytes=1000)
    monkeypatch.setattr(interleaved, "_free_bytes", lambda: free.bytes)

    class Launch:
        over = True

        def start(self) -> None:
            free.bytes -= 300

        def look(self, _: float) -> None:
            pass

        def conclude(self) -> None:
            pass

    turnstile = cast(
        Turnstile,
        SimpleNamespace(enter=str, leave=str, serves=True, has_asked=lambda _: True, held_s=lambda _: 0.0),
    )
    together = InterleavedLaunches(turnstile)
    begun = 0
    while together.has_room():
        together.start(str(begun), cast(RunningLaunch, Launch()), lambda *_: None)
        begun += 1
    assert begun == 2, "a third would use 900 of 1000 bytes"


def test_as_many_launches_as_fit_into_the_budget_run_at_once() -> None:
    expected = SimpleNamespace(launch_s=lambda seconds: seconds)
    sweep = cast(Sweep, SimpleNamespace(_progress=SimpleNamespace(expected=expected, left_s=25.0)))
    launches = cast(Any, [10.0, 10.0, 10.0])
    assert list(Sweep._fitting(sweep, launches)) == launches[:2]
    assert not Sweep._fitting(sweep, cast(Any, [30.0, 1.0]))


def test_cases_are_in_one_group_with_their_base_case() -> None:
    batches = range(1, 9)
    cases = [planned(strategy="ddp", world_size=2, local_batch=n) for n in batches]
    bases = [PlannedCase(case=entry.case.baseline(), added_as_baseline=True) for entry in cases]
    groups = interleaved_groups([*cases, *bases], [*cases, *bases])
    assert len(groups) == 2
    for group in groups:
        ids = {entry.case.case_id for entry in group}
        assert all(entry.case.baseline().case_id in ids for entry in group)
