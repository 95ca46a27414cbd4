"""Ray Train as a strategy and as a launcher: in plans without Ray, and in small sweeps with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddpbench
from ddpbench.errors import MachineError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.verify import verification_cases, verify
from ddpbench.naming import Namer
from ddpbench.records import Met, Proof, RankStart, RunDir, read_launch
from ddpbench.runtime import launched
from ddpbench.spec import Case, Devices, PlannedCase, expand, parse_experiment
from ddpbench.strategies import load_strategy
from ddpbench.worker.place import JobPlace
from tests.failures.conftest import ROOT, run_cli
from tests.processes import nothing_left_behind

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.framework("ray_train")
SMALL = """
question = "What does Ray Train cost?"
[base]
local_batch = 4
{base}
[axes]
{axes}
[budget]
rounds_min = 1
rounds_max = 1
measured_s = "60 ms"
hang_timeout = "300 s"
total = "60 min"
"""


def planned(axes: str, base: str = "") -> list[PlannedCase]:
    catalog = TableCatalog()
    experiment = parse_experiment(SMALL.format(base=base, axes=axes), catalog, name="test")
    return expand(experiment, catalog, Devices(kind="cpu", gpus=0, cores=2))


def only(axes: str, base: str = "") -> PlannedCase:
    (entry,) = [one for one in planned(axes, base) if not one.added_as_baseline]
    return entry


def test_it_brings_its_own_launcher_and_others_keep_theirs() -> None:
    entries = planned('strategy = ["ddp", "ray_train"]', "world_size = 2")
    assert {(one.case.strategy, one.case.launcher, one.skip_reason) for one in entries} == {
        ("ddp", "local", None),
        ("ray_train", "ray", None),
        ("single", "local", None),
        ("single", "ray", None),  # each has a base case that was started the same way
    }
    bases = {one.case.case_id: one.case.launcher for one in entries if one.added_as_baseline}
    assert {one.case.strategy: bases[one.case.baseline().case_id] for one in entries[:2]} == {
        "ddp": "local",
        "ray_train": "ray",
    }
    assert Namer(one.case for one in entries).full(entries[1].case).endswith("launched by ray")


def test_ddp_may_be_started_by_ray_and_so_is_its_base_case() -> None:
    entries = planned('launcher = ["local", "ray"]', "world_size = 2")
    assert [(one.case.strategy, one.case.launcher) for one in entries] == [
        ("ddp", "local"),
        ("ddp", "ray"),
        ("single", "local"),
        ("single", "ray"),
    ]


@pytest.mark.parametrize(
    ("axes", "base", "words"),
    [
        ('strategy = ["ray_train"]', 'launcher = "srun"', 'set launcher = "local", "torchrun" or "ray", not "srun"'),
        ('strategy = ["ray_train"]', 'backend = "mpi"\nworld_size = 2', 'set backend = "gloo" or "nccl"'),
        ('strategy = ["ddp"]', 'backend = "mpi"\nworld_size = 2\nlauncher = "ray"', "and cannot use MPI"),
        ('strategy = ["ddp"]', 'launcher = "ray"\nrecovery = "SIGKILL"', 'use launcher = "torchrun"'),
        ('strategy = ["ray_train"]', 'recovery = "SIGKILL"', "use another strategy and launcher"),
        ('strategy = ["ddp"]', 'launcher = "ray"\nworld_size = 2\nnodes = 2', "set nodes = 1"),
        ('workload = ["replay:gpt-nano-cpu"]', 'strategy = "ray_train"', "a replay computes nothing"),
        ('"options.ray_train.accumulate" = [3]', 'strategy = "ray_train"', "does not divide a local batch of 4"),
        (
            'strategy = ["ray_train"]\n[fabric]\nbandwidth = "1 Gbit/s"\nnodes = 2',
            'workload = "replay:gpt-nano-cpu"',
            "use another strategy than ray_train",
        ),
    ],
)  # fmt: skip
def test_what_ray_cannot_start_is_skipped_with_what_to_do(axes: str, base: str, words: str) -> None:
    reason = only(axes, base).skip_reason
    assert reason is not None
    assert words in reason


def test_without_ray_the_strategy_is_skipped_and_the_launcher_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ddpbench.strategies.frameworks import installed

    monkeypatch.setattr(installed, "_installed", lambda distributions: (distributions[0], ""))
    line = "pip install 'ddpbench[ray-train]'"
    assert line in (only('strategy = ["ray_train"]').skip_reason or "")
    with pytest.raises(MachineError, match=re.escape(line)):
        launched.check_launcher("ray")
    launched.check_launcher("torchrun")


def test_its_command_starts_a_ray_of_its_own() -> None:
    line = launched.command_of("ray", 3, ["RUN", "case", "0"])
    assert line[1:] == ["-P", "-m", "ddpbench.worker.ray", "3", "RUN", "case", "0"]


def test_its_options_are_those_of_ddp_with_its_defaults() -> None:
    own, ddps = (load_strategy(name).options().model_dump() for name in ("ray_train", "ddp"))
    assert own.items() <= ddps.items()


def records(run: Path, case: str, what: str = "launch-00") -> Any:
    (folder,) = [path for path in (run / "cases").iterdir() if path.name.startswith(case)]
    kind = "proof" if what == "proof" else "measure"
    return read_launch(RunDir(run).launch(folder.name, kind, 0)).ranks  # type: ignore[arg-type]


@pytest.mark.multiprocess
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_sweep_proves_and_times_it_beside_ddp(
    ranks: int, tmp_path: Path, nothing_left_behind: None
) -> None:
    experiment = tmp_path / "ray.toml"
    axes = f'strategy = ["ddp", "ray_train"]\nworkload = ["mlp:small"]\nworld_size = [{ranks}]'
    experiment.write_text(SMALL.format(axes=axes, base=""), encoding="utf-8")
    run = tmp_path / "run"
    result = run_cli("sweep", experiment, "--out", run)
    assert result.returncode == 0, result
    frame = ddpbench.load(run)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    assert {(row.strategy, row.launcher) for row in frame.itertuples()} == {
        ("single", "local"), ("ddp", "local"), ("single", "ray"), ("ray_train", "ray")
    }  # fmt: skip
    of_ray = frame[frame["strategy"] == "ray_train"]
    # Its start is reported in parts, and Ray has a worker for it after a second at the earliest.
    parts = [name for name in frame if str(name).startswith("startup_") and "ci" not in str(name)]
    sums = of_ray[[name for name in parts if name != "startup_s"]].sum(axis=1)
    assert sums.to_list() == pytest.approx(of_ray["startup_s"].to_list())
    assert (of_ray["startup_process_s"] > 1).all()
    (row,) = of_ray.itertuples()
    if ranks > 1:  # a single rank sums nothing
        assert row.exposed_comm_s > 0  # transfers were noted, by a hook
        assert of_ray["actual_bucket_bytes"].notna().all()
    proofs = records(run, row.case_id, "proof")[0].of(Proof)
    assert {one.dtype for one in proofs} == {"float64", "float32"}
    assert all(one.passed for one in proofs)
    starts = [rank.last(RankStart) for rank in records(run, row.case_id)]
    assert [start.threads for start in starts] == [1] * ranks  # as the harness sets them, regardless of Ray
    assert [len(start.cores) for start in starts] == [1] * ranks
    assert all(rank.last(Met) for rank in records(run, row.case_id))
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Start-up, s: from the moment at which a launch is asked for" in page
    assert '<td data-title="Started by">Ray Train</td>' in page
    assert "Ray Train itself starts this strategy" in page


@pytest.mark.multiprocess
@pytest.mark.thorough
def test_other_strategies_train_under_rays_launcher(tmp_path: Path, nothing_left_behind: None) -> None:
    """`single` and `independent` get no process group; a requested variable arrives."""
    experiment = tmp_path / "ray.toml"
    axes = 'strategy = ["single", "independent", "ddp"]\nworld_size = [1, 2]'
    base = 'launcher = "ray"\nworkload = "mlp:small"\nloader_workers = 1\n[env]\nTEST_OF_RAY = "arrived"'
    alone = '\n[[exclude]]\nstrategy = ["independent", "ddp"]\nworld_size = [1]\n'
    experiment.write_text(SMALL.format(axes=axes, base=base) + alone, encoding="utf-8")
    run = tmp_path / "run"
    result = run_cli("sweep", experiment, "--out", run)
    assert result.returncode == 0, result
    frame = ddpbench.load(run)
    done = frame[frame["status"] == "ok"]
    assert {(row.strategy, row.world_size, row.launcher) for row in done.itertuples()} == {
        ("single", 1, "ray"), ("independent", 2, "ray"), ("ddp", 2, "ray"),
    }  # fmt: skip
    assert set(frame["status"]) == {"ok", "skipped"}


@pytest.mark.multiprocess
@pytest.mark.thorough
def test_its_variants_and_a_model_with_convolutions_are_proved(nothing_left_behind: None) -> None:
    variants = verification_cases(["ray_train"], ["mlp:small"], [2], "gloo")[1:]
    plain = [
        one
        for one in verification_cases(["ray_train"], ["cnn"], [1, 2], "gloo")
        if "cnn" in one.case.workload
    ]
    usual = [one for one in plain if one.case.options == load_strategy("ray_train").options().model_dump()]
    assert (len(variants), len(usual)) == (4, 2)
    found = verify([*variants, *usual])
    assert {(one.workload, one.world_size, one.options): one.status for one in found} == {
        ("mlp:small", 2, "gradient_as_bucket_view=true"): "ok",
        ("mlp:small", 2, "static_graph=true"): "ok",
        ("mlp:small", 2, "find_unused_parameters=true"): "ok",
        ("mlp:small", 2, "accumulate=2"): "ok",
        ("cnn:small", 1, ""): "ok",
        ("cnn:small", 2, ""): "ok",
    }, found


UNWRAPPED = """
import os
import ray.train.torch
from tests.failures.faulty import Sound

class Unwrapped(Sound):
    def model(self, options):
        ray.train.torch.prepare_model = lambda model, **_: model
        return super().model(options)
"""


@pytest.mark.multiprocess
@pytest.mark.thorough
def test_a_ray_that_does_not_wrap_is_caught_by_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left_behind: None
) -> None:
    """Planted: the function by which Ray's documentation averages gradients leaves the model as it is."""
    (tmp_path / "unwrapped.py").write_text(UNWRAPPED, encoding="utf-8")
    experiment = tmp_path / "ray.toml"
    axes = f'strategy = ["ray_train"]\nworld_size = [2]\nworkload = ["{tmp_path}/unwrapped.py:Unwrapped"]'
    experiment.write_text(SMALL.format(axes=axes, base=""), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    assert run_cli("sweep", experiment, "--out", tmp_path / "run").returncode == 1
    frame = ddpbench.load(tmp_path / "run")
    (row,) = frame[frame["strategy"] == "ray_train"].itertuples()
    assert row.status == "diverged", row.error
    assert "does not train as one process does: gradients" in row.error


@pytest.fixture
def formed() -> Iterator[None]:
    """Make a default group in advance, of one rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def place(processes: int) -> JobPlace:
    return JobPlace(rank=0, processes=processes, local_rank=0, attempt=0, cores=(), loader_cores=())


def test_the_group_that_ray_has_formed_is_used_and_left_to_it(formed: None) -> None:
    import torch
    import torch.distributed as dist

    from ddpbench.worker.training.control import leave, meet

    case = Case(workload="mlp:small", strategy="ray_train", launcher="ray")
    control = meet(case, place(1), uses_backend=True, device=torch.device("cpu"))
    leave(control, borrowed=True)
    assert dist.is_initialized()
    leave(control)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("backend", "processes", "words"),
    [
        ("nccl", 1, "gloo, rank 0 of 1, instead of nccl, rank 0 of 1"),
        ("gloo", 2, "rank 0 of 1, instead of gloo, rank 0 of 2"),
    ],
)
def test_a_group_of_other_ranks_or_of_another_backend_is_refused(
    formed: None, backend: str, processes: int, words: str
) -> None:
    import torch

    from ddpbench.worker.training.control import meet

    case = Case(workload="mlp:small", strategy="ddp", launcher="ray", backend=backend, world_size=processes)
    with pytest.raises(RuntimeError, match=re.escape(words)):
        meet(case, place(processes), uses_backend=True, device=torch.device("cpu"))


def test_a_process_that_is_no_worker_of_rays_is_refused() -> None:
    pytest.importorskip("ray")
    import torch

    from ddpbench.measure.recorder import NullRecorder
    from ddpbench.strategies import Job

    job = Job(
        case=Case(workload="mlp:small", strategy="ray_train"),
        model=torch.nn.Linear(2, 2),
        loss=torch.nn.functional.mse_loss,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        device=torch.device("cpu"),
        rank=0,
        local_rank=0,
        world_size=1,
        distributed=False,
        recorder=NullRecorder(),
    )
    strategy = load_strategy("ray_train")
    with pytest.raises(RuntimeError, match="Ray Train"):
        strategy.build(job, strategy.options())
