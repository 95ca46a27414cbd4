"""Faults of launches that alternate: of ranks that wait or compute, of fork servers, of memory and of the sweep."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis.read.cases import read_cases
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.launch.watch import LaunchRunner, RunningLaunch
from ddpbench.records import LaunchOutcome, RunDir
from ddpbench.records.plan import read_plan
from ddpbench.runtime.turnstile import Turnstile
from ddpbench.spec import Case
from tests.failures.conftest import ROOT, experiment_text, worker_processes, workload
from tests.failures.test_interleaved_rounds import Outcomes, step_ns, swept, timed
from tests.processes import python_path

pytestmark = pytest.mark.multiprocess


Work = Callable[[Callable[[], bool]], None]
"""A function that a thread runs beside a sweep; it gets a function that returns whether the sweep has ended."""


class Watched(Turnstile):
    """A turnstile that a test can look at: the last one that was made."""

    last: Watched | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        Watched.last = self

    @classmethod
    def computes_beside(cls, waiting: Collection[str], turns: int) -> bool:
        """Return whether a launch computes while these wait, which have had this many turns since they met."""
        last = cls.last
        return (
            last is not None
            and last.holder not in ("", *waiting)
            and last._sides.met.issuperset(waiting)
            and all(last._shares.turns.get(side, 0) >= turns for side in waiting)
        )


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    Watched.last = None
    monkeypatch.setattr("ddpbench.launch.sweep.rotating.Turnstile", Watched)
    return Watched


@contextmanager
def meanwhile(*works: Work) -> Iterator[None]:
    """Run functions in threads beside the block."""
    ended = threading.Event()
    threads = [threading.Thread(target=work, args=(ended.is_set,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(10)


def wait_for(what: Callable[[], bool], ended: Callable[[], bool]) -> bool:
    while not what():
        if ended():
            return False
        time.sleep(0.0005)
    return True


def cases_of(run: Path, fits: Callable[[Case], bool]) -> list[str]:
    return [entry.case.case_id for entry in read_plan(RunDir(run)).cases if fits(entry.case)]


def runs(name: str) -> Callable[[Case], bool]:
    return lambda case: case.workload.endswith(f":{name}")


def pid_of(run: Path, case_id: str, rank: int) -> int:
    (path,) = (run / "cases" / case_id / "launch-00").glob(f"rank-{rank:05}*.jsonl")
    return int(json.loads(path.read_text("utf-8").splitlines()[0])["pid"])


def sent(
    watched: type[Watched], run: Path, name: str, *, rank: int, turns: int, signals: Sequence[int]
) -> Work:
    """Return a function that sends signals to a rank, a second apart, while another launch computes."""

    def work(ended: Callable[[], bool]) -> None:
        if not wait_for(lambda: watched.last is not None, ended):
            return
        (case_id,) = cases_of(run, runs(name))
        if wait_for(lambda: watched.computes_beside([case_id], turns), ended):
            pid = pid_of(run, case_id, rank)
            for number in signals:
                os.kill(pid, number)
                time.sleep(1.0)

    return work


@pytest.fixture
def concluded(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """When each measuring launch of the first round was concluded, ns, by case id."""
    seen: dict[str, tuple[int, int]] = {}
    conclude = RunningLaunch.conclude

    def recorded(self: RunningLaunch) -> LaunchOutcome:
        began = time.perf_counter_ns()
        outcome = conclude(self)
        if outcome.purpose == "measure":
            seen[outcome.case_id] = began, time.perf_counter_ns()
        return outcome

    monkeypatch.setattr(RunningLaunch, "conclude", recorded)
    return seen


def test_launches_that_fail_while_they_wait_or_compute_leave_the_blocks_of_others(
    tmp_path: Path, watched: type[Watched], concluded: dict[str, tuple[int, int]], no_base_case: None
) -> None:
    """Ranks are killed or stopped while another launch computes, or go wrong in their own turn."""
    run, dice = tmp_path / "run", random.Random()
    begin = partial(sent, watched, run)
    works = [
        begin("Dropout", rank=0, turns=dice.randint(1, 6), signals=[signal.SIGKILL]),
        begin("Dropping", rank=1, turns=dice.randint(1, 6), signals=[signal.SIGKILL]),
        begin("BatchNorm", rank=1, turns=3, signals=[signal.SIGSTOP, signal.SIGCONT]),
    ]
    names = ["Sound", "Dropout", "Dropping", "BatchNorm", "SleepsInTurn", "ExitsInTurn", "RaisesInTurn"]
    with meanwhile(*works):
        _, listener = swept(tmp_path, names, rounds=1, hang_timeout="3 s", measured="400 ms")
    found = {name: outcomes[0] for name, outcomes in listener.seen.items()}
    status = {name: outcome.status for name, outcome in found.items()}
    assert status == {
        **dict.fromkeys(("Sound", "BatchNorm"), "ok"),
        **dict.fromkeys(("Dropout", "Dropping", "ExitsInTurn", "RaisesInTurn"), "failed"),
        "SleepsInTurn": "hung",
    }
    assert (found["Dropout"].failed_rank, found["Dropping"].failed_rank) == (0, 1)
    assert "ended after 3 s without progress" in found["SleepsInTurn"].error
    assert found["RaisesInTurn"].failed_rank == 1
    assert all("was killed by SIGKILL" in found[name].error for name in ("Dropout", "Dropping"))
    assert "the forward pass is broken" in found["RaisesInTurn"].error
    blocks = timed(run, 0)
    for name in ("Sound", "BatchNorm"):
        case, own = found[name].case_id, [record for at, record in blocks if at == found[name].case_id]
        assert sum(record["end_ns"] - record["start_ns"] for record in own) > 0.3e9, "its time is complete"
        assert found[name].alternated
        for other, (began, ended) in concluded.items():
            inside = [one for one in own if one["start_ns"] < ended and began < one["end_ns"]]
            assert other == case or not inside, "no block was timed while the sweep judged another launch"
    assert not worker_processes()


def test_a_rank_that_the_kernel_kills_for_memory_beside_others_gets_another_launch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_base_case: None
) -> None:
    monkeypatch.setattr("ddpbench.launch.watch.oom_kills", lambda: 10**9)
    _, listener = swept(tmp_path, ["KilledInTurn", "Sound"], rounds=1)
    (again,), (sound,) = listener.seen["KilledInTurn"], listener.seen["Sound"]
    assert (again.status, again.alternated) == ("ok", ())
    assert (sound.status, bool(sound.alternated)) == ("ok", True)
    (warning,) = listener.warned
    assert warning.startswith("1 launch of round 1 repeated, one at a time: this ")
    assert "ran out of" in warning
    assert not worker_processes()


def test_a_fork_server_that_is_killed_takes_only_its_own_launches_along(
    tmp_path: Path, watched: type[Watched], monkeypatch: pytest.MonkeyPatch, no_base_case: None
) -> None:
    servers: dict[str, int] = {}
    begin = LaunchRunner.begin

    def recorded(self: LaunchRunner, server: Any, plan: Any, **arguments: Any) -> RunningLaunch:
        servers.setdefault(plan.case.env["OMP_WAIT_POLICY"], server.pid)
        return begin(self, server, plan, **arguments)

    def kill(ended: Callable[[], bool]) -> None:
        if wait_for(lambda: watched.last is not None, ended):
            active = cases_of(tmp_path / "run", lambda case: case.env["OMP_WAIT_POLICY"] == "ACTIVE")
            if wait_for(lambda: watched.computes_beside(active, 2), ended):
                os.kill(servers["ACTIVE"], signal.SIGKILL)

    monkeypatch.setattr(LaunchRunner, "begin", recorded)
    axis = 'axes."env.OMP_WAIT_POLICY"=["ACTIVE", "PASSIVE"]'
    with meanwhile(kill):
        _, listener = swept(tmp_path, ["Sound", "Dropout"], axis, rounds=1, measured="400 ms")
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    assert [outcome.status for outcome in outcomes] == ["ok"] * 4
    assert sum(bool(outcome.alternated) for outcome in outcomes) == 2, "those of the other server went on"
    (warning,) = [text for text in listener.warned if "repeated" in text]
    assert warning.startswith("2 launches of round 1 repeated, one at a time: the fork server was killed")
    assert not worker_processes()


SWEEPS_BY_THREES = """
import sys
from ddpbench.cli import run
from ddpbench.launch.sweep import rotating
rotating.MOST_AT_ONCE = 3
sys.exit(run(["sweep", *sys.argv[1:]]))
"""


def test_a_sweep_that_is_killed_between_two_groups_is_resumed_with_complete_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpbench.launch.sweep.rotating.MOST_AT_ONCE", 3)
    path, run = tmp_path / "turns.toml", tmp_path / "run"
    text = experiment_text([workload("Sound")], rounds=2, turns="blocks", total="5 min", measured="400 ms")
    axis = "axes.strategy=['ddp', 'master', 'data_parallel', 'zero1']"
    path.write_text(text, encoding="utf-8")
    sweep = subprocess.Popen(
        [sys.executable, "-c", SWEEPS_BY_THREES, path, "--out", run, "--set", axis],
        env=os.environ | {"PYTHONPATH": python_path(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 180
    while not _is_among_the_second_group(run):
        assert time.monotonic() < deadline
        assert sweep.poll() is None
        time.sleep(0.01)
    sweep.kill()
    sweep.wait()
    while worker_processes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    ended = len(list(run.glob("cases/*/launch-01/outcome.json")))
    assert 1 <= ended < 5, "killed in the middle of the second round"
    listener = Outcomes()
    Sweep(prepare(SweepRequest(experiment=run, out=None)), listener).run()
    outcomes = [outcome for each in listener.seen.values() for outcome in each]
    assert [outcome.round for outcome in outcomes] == [1] * 5, "the first round was complete"
    assert all(outcome.status == "ok" and outcome.alternated for outcome in outcomes)
    assert len(list(run.glob("cases/*/launch-01.aside-*"))) == 5
    cases = read_cases(RunDir(run), read_plan(RunDir(run)))
    assert [[timing.round for timing in case.timings] for case in cases] == [[0, 1]] * 5
    assert {len({case.timings[number].session for case in cases}) for number in (0, 1)} == {1}
    assert cases[0].timings[0].session != cases[0].timings[1].session
    for number in (0, 1):
        _check_corrections(run, number)


def _is_among_the_second_group(run: Path) -> bool:
    """Return whether the anchor's blocks of round 2 alternate with the second group's."""
    for file in run.glob("cases/single*/launch-01/rank-00000*.jsonl"):
        with suppress(ValueError):
            return any(json.loads(line).get("group") == 1 for line in file.read_text("utf-8").splitlines())
    return False


def _check_corrections(run: Path, number: int) -> None:
    """Check that each launch's correction is the anchor's time over all blocks, divided by that in its group."""
    base = next(iter(run.glob(f"cases/single*/launch-{number:02}/outcome.json")))
    alternated = json.loads(base.read_text("utf-8"))["alternated"]
    assert sorted(map(len, alternated)) == [2, 2]
    own = [record for case, record in timed(run, number) if case == base.parent.parent.name]
    timings = {case.case_id: case for case in read_cases(RunDir(run), read_plan(RunDir(run)))}
    for group, ids in enumerate(alternated):
        among = [record for record in own if record["group"] == group]
        for case in ids:
            (timing,) = [one for one in timings[case].timings if one.round == number]
            assert timing.correction == pytest.approx(step_ns(own) / step_ns(among))
