"""Evaluation: the state that it leaves unchanged, and how its blocks are cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from ddpbench.measure.blocks import AloneControl, Stepper
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder
from ddpbench.spec import Case
from ddpbench.strategies import Job, Replica, load_strategy
from ddpbench.worker.rank.evaluation import evaluate, evaluation_blocks
from tests.fake_clock import FakeClock


class Net(nn.Module):
    """Counts its forwards, and notes the modes in which they ran."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen.append((self.training, torch.is_grad_enabled()))
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


def replica_of(model: nn.Module) -> Replica:
    strategy = load_strategy("single")
    job = Job(
        case=Case(workload="tests", strategy="single"),
        model=model,
        loss=nn.functional.cross_entropy,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        device=torch.device("cpu"),
        rank=0,
        local_rank=0,
        world_size=1,
        distributed=False,
        recorder=NullRecorder(),
    )
    return strategy.build(job, strategy.options())


def batches() -> Any:
    return itertools.cycle([(torch.randn(8, 4), torch.randint(3, (8,)))])


def stepper(clock: Any) -> Stepper:
    return Stepper(lambda: None, 8, clock, AloneControl())


def test_nothing_of_the_model_changes() -> None:
    model = Net()
    model.layers[0].eval()  # a part that its owner keeps in eval mode stays there
    before = {name: value.clone() for name, value in model.state_dict().items()}
    beats: list[None] = []
    blocks = evaluate(replica_of(model), batches(), stepper(HostClock()), 0.001, lambda: beats.append(None))
    assert set(model.seen) == {(False, False)}
    assert len(beats) == len(model.seen)
    after = model.state_dict()
    assert all(
        torch.equal(value, after[name]) for name, value in before.items()
    )  # BatchNorm's statistics too
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [part.training for part in model.layers] == [False, True, True, True]
    assert model.training
    assert torch.is_grad_enabled()
    assert [block.phase for block in blocks] == ["warmup"] + ["evaluation"] * (len(blocks) - 1)


def test_the_modes_are_restored_after_an_error() -> None:
    model = Net()
    with pytest.raises(StopIteration):
        evaluate(replica_of(model), iter([]), stepper(HostClock()), 0.1, lambda: None)
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize(
    ("step_ms", "lengths"),
    [
        (1, [125] * 4),  # a quarter of 2 s in four blocks
        (20, [10, 10]),  # ten steps per block are 200 ms: half a block short of 500 ms is near enough
        (300, [10, 10]),  # never fewer than two blocks of ten
    ],
)
def test_blocks_take_a_quarter_of_the_training_steps_time(step_ms: int, lengths: list[int]) -> None:
    clock = FakeClock()
    steps: list[None] = []

    def step() -> None:
        steps.append(None)
        clock.advance(step_ms * 1_000_000)

    warmup, *blocks = evaluation_blocks(Stepper(step, 4, clock, AloneControl()), 2.0)
    assert [block.steps for block in blocks] == lengths
    assert [block.end_ns - block.start_ns for block in blocks] == [n * step_ms * 1_000_000 for n in lengths]
    assert [block.samples for block in blocks] == [4 * n for n in lengths]
    assert (warmup.phase, warmup.steps) == ("warmup", 3)
    assert len(steps) == sum(lengths) + 3 + len(lengths) + 1  # the first after each barrier is dropped
