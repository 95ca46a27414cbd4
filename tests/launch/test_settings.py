"""Settings that change how ranks run, on real ranks: each case trains, is proved, and has numbers."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path

import pytest

import ddpbench
from ddpbench.launch.sweep import servers
from ddpbench.records import Proof, RankStart, RunDir, read_launch
from ddpbench.runtime.server import ServerProcess

pytestmark = pytest.mark.multiprocess
FAULTY = Path(__file__).parents[1] / "failures/faulty.py"


def sweep(folder: Path, text: str) -> RunDir:
    path = folder / "settings.toml"
    budget = "[budget]\nrounds_min = 1\nrounds_max = 1\nmeasured_s = 0.1\n"
    path.write_text(f"{text}\n{budget}", encoding="utf-8")
    return RunDir(ddpbench.sweep(path, out=folder / "run"))


def test_threads_strong_scaling_float64_and_loader_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loader workers take seconds to start in each rank: DDP with them is in `test_beside_training.py`."""
    monkeypatch.setenv(
        "OMP_WAIT_POLICY", "passive"
    )  # twice as many threads as cores, which would otherwise spin
    run = sweep(
        tmp_path,
        """
        [base]
        workload = "mlp"
        scaling = "strong"
        global_batch = 8
        dtype = "float64"
        threads_per_rank = 2
        [axes]
        strategy = ["ddp", "data_parallel"]
        world_size = [2]
        loader_workers = [0, 1]
        [[exclude]]
        strategy = "ddp"
        loader_workers = 1
        [[exclude]]
        strategy = "data_parallel"
        loader_workers = 0
        """,
    )
    frame = ddpbench.load(run.path)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    assert len(frame) == 4  # two strategies, and the base case of each
    assert {*zip(frame["strategy"], frame["loader_workers"], strict=True)} == {
        ("ddp", 0),
        ("single", 0),
        ("data_parallel", 1),
        ("single", 1),
    }
    assert set(frame["global_batch"]) == {8}
    assert set(frame[frame["world_size"] == 2]["local_batch"]) == {4}
    ddp = frame[(frame["strategy"] == "ddp") & (frame["world_size"] == 2)].iloc[0]
    parameters = (64 * 256 + 256) + 2 * (256 * 256 + 256) + (256 * 256 + 256)
    assert ddp["gradient_bytes"] == 8 * parameters  # float64
    for rank in read_launch(run.launch(ddp["case_id"], "measure", 0)).ranks:
        start = rank.last(RankStart)
        assert start is not None
        assert start.threads == 2


@pytest.mark.thorough
def test_random_and_batch_normalised_models_are_not_called_wrong(tmp_path: Path) -> None:
    run = sweep(
        tmp_path,
        f"""
        [base]
        world_size = 2
        [axes]
        workload = ["{FAULTY}:Dropout", "{FAULTY}:BatchNorm"]
        strategy = ["ddp", "data_parallel"]
        """,
    )
    frame = ddpbench.load(run.path)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    notes: dict[tuple[str, str], set[str]] = {}
    for row in frame[frame["world_size"] == 2].itertuples():
        proofs = read_launch(run.launch(str(row.case_id), "proof")).ranks[0].of(Proof)
        name = str(row.workload).rpartition(":")[2]
        notes[name, str(row.strategy)] = {proof.compared for proof in proofs if proof.note}
    assert notes == {
        ("Dropout", "ddp"): {"gradients, whole batch"},
        ("Dropout", "data_parallel"): {"gradients, whole batch"},
        ("BatchNorm", "ddp"): {"gradients, whole batch"},
        ("BatchNorm", "data_parallel"): {"gradients, whole batch"},
    }


@pytest.mark.alone
def test_a_round_has_a_server_of_its_own_and_the_cores_are_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round's server also served the proof, which is charged nothing of its start."""
    monkeypatch.delenv("DDPBENCH_SHARED_MACHINE")
    started: list[ServerProcess] = []

    class Counted(ServerProcess):
        def __init__(self, env: Mapping[str, str], log: Path, *, log_stays: bool) -> None:
            super().__init__(env, log, log_stays=log_stays)
            started.append(self)

    monkeypatch.setattr(servers, "ServerProcess", Counted)
    path = tmp_path / "rounds.toml"
    path.write_text(
        '[base]\nworkload = "mlp:small"\nstrategy = "single"\n[budget]\nrounds_min = 2\nrounds_max = 2\n'
        "measured_s = 0.05\n",
        encoding="utf-8",
    )
    run = RunDir(ddpbench.sweep(path, out=tmp_path / "run"))
    (case_id,) = ddpbench.load(run.path)["case_id"]
    found = [read_launch(run.launch(case_id, "proof")).outcome]
    found += [read_launch(run.launch(case_id, "measure", number)).outcome for number in (0, 1)]
    outcomes = [outcome for outcome in found if outcome is not None]
    assert len(outcomes) == 3
    assert [outcome.server_s for outcome in outcomes] == [
        0,
        *(pytest.approx(server.start_s, abs=1e-6) for server in started),
    ]
    assert not any(server.alive for server in started)
    assert not any(outcome.noise.shared_machine for outcome in outcomes)


def test_the_first_round_that_a_server_serves_bears_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for servers that stay and those that end with their round, even if the next reuses their memory."""

    class Started:
        start_s, alive = 4.0, True

        def __init__(self, *_: object, log_stays: bool) -> None: ...

        def __enter__(self) -> Started:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(servers, "ServerProcess", Started)
    found = servers.Servers(tmp_path / "log")
    on = [found.charged_s(found.of({}), number) for number in (0, 0, 1, 2)]
    assert on == [4.0, 4.0, 0.0, 0.0]
    found.end_round(serve_on=True)
    assert found.charged_s(found.of({}), 3) == 0.0
    found.end_round(serve_on=False)
    for number in range(4, 40):
        assert found.charged_s(found.of({}), number) == 4.0
        found.end()


@pytest.mark.parametrize("serve_on", [True, False])
def test_after_a_round_nothing_waits_to_be_collected(tmp_path: Path, serve_on: bool) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    gone = weakref.ref(Cycle())
    servers.Servers(tmp_path / "log").end_round(serve_on=serve_on)
    assert gone() is None
