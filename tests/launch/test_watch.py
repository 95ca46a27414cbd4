"""The time that counts as a launch: from the request for its ranks to a server that can fork them."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpbench.launch import watch
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.plan import plan_launch
from ddpbench.machine.hardware import read_hardware
from ddpbench.records import RunDir
from ddpbench.records.job_key import SECRET_VARIABLE
from ddpbench.records.rundir import Purpose
from ddpbench.runtime.server import ServerProcess
from ddpbench.spec import Case

ASKING_S, TRAINING_S = 3.0, 10.0


def end_all(running: Any) -> None:
    """Record that all ranks of a launch have ended well."""
    running._seen.codes.update(dict.fromkeys(range(running._seen.ranks), 0))


@pytest.mark.parametrize("new_server", [False, True])
def test_what_another_server_took_to_start_is_no_part_of_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_server: bool
) -> None:
    clock = SimpleNamespace(s=100.0)
    begun: list[float] = []
    found: dict[str, Any] = {}

    def launch(*_: object) -> bool:
        clock.s += ASKING_S
        return new_server

    def looked(running: Any, _timeout_s: float) -> None:
        found.update(alive_at=running._seen.alive_at, noise_from=running._noise.begun)
        clock.s += TRAINING_S
        end_all(running)

    def note(*_: object, **__: object) -> Any:
        begun.append(clock.s)
        return SimpleNamespace(begun=clock.s, stop=lambda _: None)

    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: clock.s, perf_counter_ns=lambda: 0))
    monkeypatch.setattr(watch, "NoiseWatch", note)
    monkeypatch.setattr(watch, "conclude", lambda *_, **outcome: outcome)
    monkeypatch.setattr(watch.RunningLaunch, "look", looked)
    run, case = RunDir(tmp_path), Case(workload="mlp:small", strategy="single")
    plan = plan_launch(
        case,
        "measure",
        0,
        directory=run.launch(case.case_id, "measure"),
        hardware=read_hardware(),
        catalog=TableCatalog(),
    )
    server = cast(
        ServerProcess, SimpleNamespace(launch=launch, pids=(), pid=0, forget=str, reports_helper_times=True)
    )
    runner = watch.LaunchRunner(run, hang_timeout_s=1, hang_setting="", shared=False)
    outcome = cast(Any, runner.run_launch(server, plan, measured_s=0.1, server_share_s=0.0))
    began = 100.0 + (ASKING_S if new_server else 0)
    assert outcome["took"].wall_s == TRAINING_S + (0 if new_server else ASKING_S)
    assert outcome["took"].server_s == (ASKING_S if new_server else 0), "it did pass"
    assert found == {"alive_at": began, "noise_from": began}


def test_an_interrupted_launch_leaves_neither_ranks_nor_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may serve other launches afterwards, and only a resume would look into its folder."""
    run, case = RunDir(tmp_path), Case(workload="mlp:small", strategy="single", checkpoint=True)
    directory = run.launch(case.case_id, "measure")
    sent: list[int] = []

    def interrupted(*_: object) -> None:
        directory.checkpoints("", "").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.RunningLaunch, "look", interrupted)
    plan = plan_launch(
        case, "measure", 0, directory=directory, hardware=read_hardware(), catalog=TableCatalog()
    )
    server = cast(
        ServerProcess,
        SimpleNamespace(
            launch=lambda *_: False,
            pids=(),
            pid=0,
            signal_ranks=sent.append,
            forget=str,
            reports_helper_times=True,
        ),
    )
    runner = watch.LaunchRunner(run, hang_timeout_s=1, hang_setting="", shared=False)
    with pytest.raises(KeyboardInterrupt):
        runner.run_launch(server, plan, measured_s=0.1, server_share_s=0.0)
    assert sent == [signal.SIGKILL]
    assert not directory.checkpoints("", "").exists()
    assert directory.path.exists()


def test_ranks_of_a_proof_have_a_secret_and_each_launch_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []

    def launch(envs: list[dict[str, str]], _directory: object) -> bool:
        given.append([env.get(SECRET_VARIABLE, "") for env in envs])
        return False

    monkeypatch.setattr(watch.RunningLaunch, "look", lambda running, _: end_all(running))
    monkeypatch.setattr(watch, "conclude", lambda *_, **outcome: outcome)
    run, case = RunDir(tmp_path), Case(workload="mlp:small", strategy="ddp", world_size=2)
    server: Any = SimpleNamespace(launch=launch, pids=(), pid=0, forget=str, reports_helper_times=True)
    runner = watch.LaunchRunner(run, hang_timeout_s=1, hang_setting="", shared=False)
    purposes: tuple[Purpose, ...] = ("proof", "proof", "measure")
    for purpose in purposes:
        plan = plan_launch(
            case,
            purpose,
            0,
            directory=run.launch(case.case_id, purpose),
            hardware=read_hardware(),
            catalog=TableCatalog(),
        )
        runner.run_launch(server, plan, measured_s=0.1, server_share_s=0.0)
    assert [len(set(each)) for each in given] == [1, 1, 1]
    first, second, measured = (each[0] for each in given)
    assert len({first, second}) == 2
    assert len(first) == 64
    assert measured == ""
