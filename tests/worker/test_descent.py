"""Training to a loss on real ranks: the curve compared with a plain loop in one process, and when it ends."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddpbench import strategies
from ddpbench.measure.blocks import AloneControl, Control
from ddpbench.measure.clock import HostClock
from ddpbench.records import LossCurve
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
from ddpbench.spec import Case, TargetLoss
from ddpbench.spec.target_loss import mean_losses, steps_to
from ddpbench.worker.place import JobPlace
from ddpbench.worker.rank.time_to_loss import LEAST_STEPS, MOST_STEPS, train_to
from ddpbench.worker.training.control import GroupControl
from ddpbench.worker.training.training import Training
from tests.ranks import run_ranks
from tests.worker.small_task import LEARNING_RATE, MOMENTUM, SAMPLES, Signs, make_model

pytestmark = pytest.mark.ranks

FILE = Path(__file__).parent / "small_task.py"
GLOBAL_BATCH = 12
SEED = 3
STEPS = 60
NEVER = TargetLoss(loss=1e-9, steps=STEPS, seconds=600.0)


def train(
    rank: int,
    processes: int,
    strategy: str,
    changes: dict[str, Any],
    target_loss: TargetLoss,
    before: int = 0,
) -> tuple[list[LossCurve], int]:
    """Return a rank's records, and how many steps it made; `before` batches are taken first."""
    if strategy == "served":
        strategies.TABLE["served"] = strategies.Entry("tests.worker.small_task:Served", "a server")
    values: dict[str, Any] = {
        "workload": f"{FILE}:Sides",
        "strategy": strategy,
        "world_size": processes,
        "global_batch": GLOBAL_BATCH,
        "local_batch": GLOBAL_BATCH // processes,
        "scaling": "strong",
        "dtype": "float64",
        "seed": SEED,
        "bucket_cap_mb": "default" if strategy == "ddp" else None,
        **changes,
    }
    case = Case(**values)
    place = JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    training = Training(case, place, torch.device("cpu"))
    control: Control = AloneControl()
    if processes > 1:
        control = GroupControl(dist.new_group(backend="gloo"), rank)
    earlier = training.batches()
    for _ in range(before):
        next(earlier)
    heartbeat = Heartbeat(bytearray(PAGE_BYTES), 0)
    records: list[LossCurve] = []
    records.extend(
        train_to(
            target_loss, training, training.batches(), clock=HostClock(), control=control, heartbeat=heartbeat
        )
    )
    return records, heartbeat.pulse.steps


@cache
def ranks(
    strategy: str, processes: int, target_loss: TargetLoss = NEVER, **changes: Any
) -> list[list[LossCurve]]:
    found = run_ranks(train, processes, strategy, changes, target_loss)
    for records, beats in found:
        assert beats == sum(len(record.step_ns) for record in records)
    return [records for records, _ in found]


def job(records: list[list[LossCurve]]) -> list[float]:
    """Return the job's loss by step."""
    return mean_losses([[loss for record in own for loss in record.losses] for own in records])


@cache
def plain_loop(batch: int = GLOBAL_BATCH) -> list[float]:
    """Return one process's losses, with its data divided and its updates written out (torch.optim.SGD's formula)."""
    data = Signs()
    torch.manual_seed(SEED)
    model = make_model().double()
    parameters = list(model.parameters())
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    losses: list[float] = []
    for epoch in range(STEPS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + epoch))
        for step in range(SAMPLES // batch):
            chosen = order[step * batch : (step + 1) * batch]
            outputs = model(data.points[chosen].double())
            loss = nn.functional.cross_entropy(outputs, data.sides[chosen])
            losses.append(float(loss.detach()))
            with torch.no_grad():
                gradients = torch.autograd.grad(loss, parameters)
                for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
                    momentum.mul_(MOMENTUM).add_(gradient)
                    parameter -= LEARNING_RATE * momentum
    return losses[:STEPS]


def apart(own: list[float], expected: list[float]) -> float:
    assert len(own) == len(expected)
    return max(abs(a / b - 1) for a, b in zip(own, expected, strict=True))


@pytest.mark.parametrize(
    ("strategy", "processes"),
    [("single", 1), ("ddp", 2), ("ddp", 3), ("master", 2), ("master", 3)],
)
def test_a_synchronous_strategy_has_one_devices_losses_over_the_same_batch(
    strategy: str, processes: int
) -> None:
    """Losses are recorded in seven digits: half a unit of the last is 5e-7 at most. Twelve samples do not divide the
    hundred.
    """
    assert apart(job(ranks(strategy, processes)), plain_loop()) < 1e-6


def test_one_process_for_all_devices_has_them_too() -> None:
    found = run_ranks(train, 1, "data_parallel", {"world_size": 3, "local_batch": 4}, NEVER)
    assert apart(job([records for records, _ in found]), plain_loop()) < 1e-6


def test_a_loader_worker_that_is_ahead_begins_anew_with_the_data() -> None:
    """Its batches of the measured steps are dropped, and the training's first is the data's first."""
    ((records, _),) = run_ranks(train, 1, "single", {"loader_workers": 1}, NEVER, 5)
    assert apart(job([records]), plain_loop()) < 1e-6


def test_ranks_that_only_serve_tell_no_loss_and_hold_nobody_up() -> None:
    served = ranks("served", 3, local_batch=6)
    assert [bool(record.losses) for own in served for record in own[:1]] == [False, True, True]
    assert [sum(record.samples for record in own) for own in served] == [0, 6 * STEPS, 6 * STEPS]
    assert apart(job(served), plain_loop()) < 1e-6


def test_weak_scaling_takes_another_path() -> None:
    weak = job(ranks("ddp", 2, local_batch=GLOBAL_BATCH, global_batch=2 * GLOBAL_BATCH, scaling="weak"))
    assert apart(weak, plain_loop(2 * GLOBAL_BATCH)) < 1e-6
    assert apart(weak, plain_loop()) > 0.1


def test_ranks_stop_together_once_the_mean_loss_is_low_enough() -> None:
    expected = plain_loop()
    means = [math.fsum(expected[end - 32 : end]) / 32 for end in range(32, STEPS + 1)]
    assert means[0] > means[9] > means[-1]  # otherwise this test shows little
    target = (means[8] + means[9]) / 2
    reached = next(number for number, mean in enumerate(means, start=32) if mean <= target)
    records = ranks("ddp", 2, TargetLoss(loss=target, steps=1000, seconds=600.0))
    losses = job(records)
    assert steps_to(target, losses, 32) == reached
    for own in records:
        assert [record.index for record in own] == list(range(len(own)))
        assert {record.target for record in own} == {target}
        lengths = [len(record.step_ns) for record in own]
        assert lengths == [len(record.step_ns) for record in records[0]]
        assert sum(lengths[:-1]) < reached <= sum(lengths) < 1000
        assert lengths[0] == 1
        assert all(LEAST_STEPS <= length <= MOST_STEPS for length in lengths[1:])
        assert all(record.end_ns - record.start_ns == sum(record.step_ns) for record in own)
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(own))


def test_it_gives_up_after_its_steps_and_after_its_seconds() -> None:
    for own in ranks("master", 2):
        assert sum(len(record.step_ns) for record in own) == STEPS
    (own,) = ranks("single", 1, TargetLoss(loss=1e-9, steps=10**6, seconds=1e-4))
    assert len(own) == 1


def test_a_loss_that_is_no_number_ends_it_on_all_ranks() -> None:
    changes = {"workload": f"{FILE}:Explodes", "dtype": "float32"}
    for records, beats in run_ranks(train, 2, "ddp", changes, NEVER):
        recorded = sum(len(record.step_ns) for record in records)
        assert recorded < beats < STEPS  # the group in which it happened is not recorded, and nothing follows
        assert all(math.isfinite(loss) for record in records for loss in record.losses)
