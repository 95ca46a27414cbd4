"""The use of a sweep's time, by a clock that only launches advance: `budget.total` is its limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep import directory, launching
from ddpbench.launch.sweep import sweep as module
from ddpbench.launch.sweep.identification import Found
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import LaunchOutcome, RunDir
from ddpbench.records.sessions import stop_reason_of
from ddpbench.runtime.estimate import Tried
from ddpbench.spec import Case

PROOF_S = 1.0
TEXT = """
    [base]
    workload = "{workload}"
    [axes]
    strategy = ["single", "ddp"]
    world_size = [1, 2]
    [[exclude]]
    strategy = "single"
    world_size = 2
    [budget]
    rounds_min = 5
    rounds_max = 9
    measured_s = 1.0
    total = "{total}"
"""
CASES = 3


class Heard(Listener):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@dataclass
class Simulated:
    """A sweep that starts nothing, and whose launches take the time that `takes` returns."""

    folder: Path
    patch: pytest.MonkeyPatch
    takes: Callable[[Case, int], float] = lambda case, number: 10.0
    tried: dict[str, Tried] = field(default_factory=dict)
    now: float = 0.0
    done: list[tuple[str, int, str]] = field(default_factory=list)
    heard: Heard = field(default_factory=Heard)
    gpus: list[str] = field(default_factory=list)
    """Claimed GPUs, of the one that is found."""

    def run(
        self, total: str, workload: str = "mlp:small", resume: bool = False, shared: bool = True
    ) -> Sweep:
        experiment = self.folder / "x.toml"
        experiment.write_text(TEXT.format(total=total, workload=workload), encoding="utf-8")
        run = self.folder / "run"
        prepared = prepare(
            SweepRequest(experiment=run) if resume else SweepRequest(experiment=experiment, out=run)
        )
        self.patch.setattr(module, "identify", self._identify)
        # nothing is identified, and nothing recorded
        self.patch.setattr(directory, "check_resumable", lambda _: None)
        self.patch.setattr(module, "Servers", _NoServers)
        self.patch.setattr(module, "claimed", lambda cores=(), gpus=(): nullcontext(self.gpus.extend(gpus)))
        self.patch.setattr(launching, "launch_throughput", lambda *_: None)
        self.patch.setenv("DDPBENCH_SHARED_MACHINE", "1" if shared else "")
        work = Sweep(prepared, self.heard, clock=lambda: self.now)
        self.patch.setattr(work._launching.runner, "run_launch", self._launch)
        work.run()
        return work

    def _identify(
        self, prepared: Any, server: object, listener: object, claim: Callable[[list[str]], object]
    ) -> Found:
        claim(["GPU-1"])
        prepared.run.plan.write_text(prepared.plan.dumps(), encoding="utf-8")
        prepared.run.experiment.write_text(prepared.experiment.to_toml(), encoding="utf-8")
        return Found(gpu_addresses=[], plan=prepared.plan, tried=self.tried)

    def _launch(self, server: object, plan: Any, **_: object) -> LaunchOutcome:
        case_id = plan.case.case_id
        self.done.append((plan.purpose, plan.round, case_id))
        took_s = PROOF_S if plan.purpose == "proof" else self.takes(plan.case, plan.round)
        self.now += took_s
        run = RunDir(self.folder / "run")
        outcome = LaunchOutcome(
            case_id=case_id,
            round=plan.round,
            purpose=plan.purpose,
            status="ok",
            wall_s=took_s,
            run_id=json.loads(run.plan.read_text(encoding="utf-8"))["run_id"],
        )
        directory = run.launch(case_id, plan.purpose, plan.round)
        directory.path.mkdir(parents=True)
        directory.outcome.write_text(json.dumps(outcome.to_json()), encoding="utf-8")
        return outcome

    def rounds(self) -> list[int]:
        """Return how many launches each round had."""
        numbers = [number for purpose, number, _ in self.done if purpose == "measure"]
        return [numbers.count(number) for number in range(max(numbers, default=-1) + 1)]


class _NoServers:
    def __init__(self, _: Path) -> None: ...

    def __enter__(self) -> _NoServers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def of(self, _: object) -> None: ...

    def charged_s(self, *_: object) -> float:
        return 0.0

    def end_round(self, *, serve_on: bool) -> None: ...


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    monkeypatch.chdir(tmp_path)
    return Simulated(tmp_path, monkeypatch)


def test_a_sweep_stops_before_the_round_that_its_budget_has_no_room_for(simulated: Simulated) -> None:
    """Three launches of 10 s per round, and 3 s of proofs: two rounds end at 63 s, a third would at 93 s."""
    work = simulated.run("90 s")
    assert simulated.rounds() == [CASES, CASES]
    assert simulated.now == 63.0
    assert work.result.stop_reason == "budget"
    assert stop_reason_of(work.result.run) == "budget"


def test_what_was_left_out_is_told_with_how_to_run_it(simulated: Simulated) -> None:
    work = simulated.run("90 s")
    room, left_out = simulated.heard.warnings
    assert room == (
        "after round 1, 5 rounds take about 2 min 33 s: budget.total, 90 s, has room for 2 of them, and under 5 "
        "give no interval; raise it, lower budget.measured_s, or leave out cases"
    )
    assert left_out == (
        "budget.total, 90 s, is spent after 2 of 5 rounds: 9 launches not run; to run them: ddpbench sweep "
        f"{work.result.run.path}"
    )


def test_a_round_that_takes_longer_than_expected_is_cut(simulated: Simulated) -> None:
    """Round 3 starts at 63 s and should end at 93 s; its first launch takes until 143 s, which leaves no room."""
    simulated.takes = lambda case, number: 10.0 if number < 2 else 80.0
    simulated.run("100 s")
    assert simulated.rounds() == [CASES, CASES, 1]
    (ahead,) = [case_id for purpose, number, case_id in simulated.done if number == 2]
    warning = simulated.heard.warnings[-1]
    assert warning.startswith(
        "budget.total, 1 min 40 s, is spent after 2 of 5 rounds: 8 launches not run (of round 3 those of "
    )
    assert ("single" in warning.partition("those of")[2]) is not ahead.startswith("single")


def test_a_sweep_that_has_room_runs_all_promised_rounds_and_says_nothing(simulated: Simulated) -> None:
    work = simulated.run("153 s")
    assert simulated.rounds() == [CASES] * 5
    assert simulated.heard.warnings == []
    assert work.result.stop_reason == "budget"  # there was no room for a sixth, and none was promised


def test_a_resumed_sweep_has_the_budget_anew_and_goes_on(simulated: Simulated) -> None:
    """The remaining three rounds take 90 s, and no proof is repeated."""
    simulated.run("90 s")
    simulated.done, simulated.now = [], 1000.0
    simulated.heard.warnings.clear()
    simulated.run("90 s", resume=True)
    assert simulated.rounds() == [0, 0, CASES, CASES, CASES]
    assert simulated.now == 1090.0
    assert simulated.heard.warnings == []


def test_an_own_workload_is_estimated_again_once_it_was_tried(simulated: Simulated) -> None:
    """A step of 200 ms: 1 s of timed steps takes 47 at least, 9.4 s; the guess before was 1.9 s per launch."""
    (simulated.folder / "train.py").write_text("class Mine:\n    pass\n", encoding="utf-8")
    simulated.tried = {"train.py:Mine": Tried(made_s=0.1, step_s=0.2, local_batch=8)}
    simulated.run("90 s", workload="train.py:Mine")
    first = simulated.heard.warnings[0]
    assert first.startswith("once your model was tried, 5 rounds take about 2 min ")
    assert "budget.total, 90 s, has room for 2 of them" in first
    assert simulated.rounds() == [CASES, CASES]


def test_a_budget_that_is_too_small_as_estimated_is_told_before_anything_starts(simulated: Simulated) -> None:
    simulated.run("20 s")
    assert simulated.heard.warnings[0].startswith("as estimated, 5 rounds take about ")
    assert simulated.now <= 20.0


@pytest.mark.parametrize("shared", [False, True])
def test_a_sweep_claims_the_gpus_that_it_finds(simulated: Simulated, shared: bool) -> None:
    simulated.run("90 s", shared=shared)
    assert simulated.gpus == ([] if shared else ["GPU-1"])
