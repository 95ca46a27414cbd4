"""Functions for ranks in tests of frameworks' strategies: the worker's own proof, with or without faults."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder, Recorder, StepRecorder
from ddpbench.records import CommRecord, Proof, StepRecord
from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.control import GroupControl
from ddpbench.worker.training.training import StepLoop, Training
from ddpbench.worker.verify.proof import Prover

STEPS = 5


def case_of(strategy: str, processes: int, workload: str = "mlp:small", **options: Any) -> Case:
    """Return a case as it is planned, with four samples per rank."""
    chosen = load_strategy(strategy)
    return Case(
        workload=workload,
        strategy=strategy,
        algorithm=chosen.algorithm,
        schedule=chosen.schedule,
        options_json=json.dumps(chosen.options.model_validate(options).model_dump(mode="json")),
        world_size=processes,
        bucket_cap_mb="default" if chosen.uses_buckets else None,
        local_batch=4,
        global_batch=4 * processes,
    )


def training_of(case: Case, rank: int) -> Training:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(case.world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(case.world_size),
    }
    place = JobPlace(
        rank=rank,
        processes=case.world_size,
        local_rank=rank,
        attempt=0,
        cores=(),
        loader_cores=(),
        host="here",
    )
    return Training(case, place, torch.device("cpu"))


Plant = Callable[[pytest.MonkeyPatch], None]


def proofs(rank: int, processes: int, cases: Sequence[Case], plant: Plant | None = None) -> list[list[Proof]]:
    """Return all that each case's proof compares, after a fault is planted in this rank."""
    control = GroupControl(torch.distributed.new_group(), rank)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        if plant is not None:
            plant(patch)
        for case in cases:
            records = Prover(training_of(case, rank), control, lambda: None).run()
            found.append([record for record in records if isinstance(record, Proof)])
    return found


def broken(found: list[Proof]) -> set[str]:
    """Return the comparisons that did not pass, in any number type."""
    return {proof.compared for proof in found if not proof.passed}


@dataclass
class Trained:
    """Observations of a rank in `STEPS` steps made as by the worker, and state left once its replica is closed."""

    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    closed: dict[str, torch.Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    records: list[StepRecord | CommRecord] = field(default_factory=list)
    buckets: list[Any] = field(default_factory=list)
    ready: list[bool] = field(default_factory=list)
    held: tuple[int, int, int] = (0, 0, 0)
    written: set[str] = field(default_factory=set)
    random: list[float] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    of_model: set[str] = field(default_factory=set)
    hooks: int = 0


def trained(
    rank: int, processes: int, case: Case, folder: Path | None = None, active: bool = False
) -> Trained:
    """Train on a rank's own batches, in an empty folder, twice on one module; return the second's observations."""
    if folder is not None:
        os.chdir(folder)
    training = training_of(case, rank)
    found = Trained()
    model = training.fresh_model()
    had = set(vars(model))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(2):
        model.load_state_dict(state)
        recorder: Recorder = StepRecorder(HostClock()) if active else NullRecorder()
        found = Trained()
        before = dict(os.environ)
        torch.manual_seed(3)
        replica = training.replica(model, recorder, distributed=True)
        pulse: Any = SimpleNamespace(beat=lambda: None)
        loop = StepLoop(replica, training.batches(), recorder, pulse, training.precision)
        for number in range(STEPS):
            if isinstance(recorder, StepRecorder):
                recorder.begin_step(number)
            loop.step()
            if isinstance(recorder, StepRecorder):
                recorder.end_step()
            found.losses.append(loop.check_loss())
            found.ready.append(replica.ready())
            buckets = replica.bucket_bytes()
            found.buckets.append(None if buckets is None else tuple(buckets))
        found.random = torch.rand(3).tolist()
        found.environment = {name: value for name, value in os.environ.items() if before.get(name) != value}
        if isinstance(recorder, StepRecorder):
            found.records = recorder.records()
        found.parameters = replica.own_parameters()
        replica.gradients_of(*next(training.batches()))
        found.held = replica.held_bytes()
        replica.close()  # while an update is still due, which is left out
        found.closed = {name: each.detach().clone() for name, each in model.named_parameters()}
        found.attributes = {name for each in model.parameters() for name in vars(each)}
        found.of_model = set(vars(model)) - had
        found.hooks = sum(
            len(hooks)
            for module in model.modules()
            for hooks in (module._forward_pre_hooks, module._forward_hooks)
        )
    if folder is not None:
        found.written = {path.name for path in folder.iterdir()}
    return found


def steps_of(run: Trained) -> list[tuple[StepRecord, list[CommRecord]]]:
    """Return an instrumented run's steps, each with its transfers."""
    steps = [record for record in run.records if isinstance(record, StepRecord)]
    transfers = [record for record in run.records if isinstance(record, CommRecord)]
    return [(step, [one for one in transfers if one.step == step.step]) for step in steps]


def gap(own: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the largest relative difference over parameters, by their norms."""
    assert own.keys() == expected.keys()
    norm = torch.linalg.vector_norm
    return max(float(norm(own[name] - expected[name]) / norm(expected[name])) for name in own)
