"""Autocast and the loss's scale: what is computed in what, and which updates are left out."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddpbench.measure.recorder import NullRecorder
from ddpbench.spec import Case
from ddpbench.strategies import Job, Replica, load_strategy
from ddpbench.worker.inspection import inspect_workload
from ddpbench.worker.precision import Precision, precision_of

CPU = torch.device("cpu")


def replica_of(model: nn.Module, precision: Precision) -> Replica:
    strategy = load_strategy("single")
    job = Job(
        case=Case(workload="tests", strategy="single"),
        model=precision.wrap(model),
        loss=precision.loss(nn.functional.mse_loss),
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        device=CPU,
        rank=0,
        local_rank=0,
        world_size=1,
        distributed=False,
        recorder=NullRecorder(),
    )
    return strategy.build(job, strategy.options())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)


@pytest.mark.parametrize(
    ("name", "dtype"), [("full", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_forward_runs_in_the_precision_and_gradients_in_the_parameters_type(
    name: str, dtype: torch.dtype
) -> None:
    precision = precision_of(name, CPU)
    model = nn.Linear(4, 2)
    replica = replica_of(model, precision)
    assert replica.job.model(batch()[0]).dtype == dtype
    replica.gradients_of(*batch())
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32


def test_a_scaled_step_is_the_step_without_a_scale() -> None:
    model = nn.Linear(4, 2)
    plain = copy.deepcopy(model)
    precision, bare = precision_of("fp16", CPU), precision_of("full", CPU)
    replica, reference = replica_of(model, precision), replica_of(plain, bare)
    expected = bare.true_loss(reference.gradients_of(*batch()))
    scaled = replica.gradients_of(*batch())
    assert float(scaled) > 1000 * expected
    assert precision.true_loss(scaled) == pytest.approx(expected, rel=1e-2)
    assert model.weight.grad is not None
    assert plain.weight.grad is not None
    torch.testing.assert_close(
        precision.true_gradient(model.weight.grad), plain.weight.grad, rtol=2e-2, atol=1e-3
    )
    precision.update(replica)
    bare.update(reference)
    torch.testing.assert_close(model.weight, plain.weight, rtol=1e-2, atol=1e-3)
    assert model.weight.grad is None


def test_an_update_with_an_infinite_gradient_is_left_out_and_the_scale_is_halved() -> None:
    model = nn.Linear(4, 2)
    before = copy.deepcopy(model.state_dict())
    precision: Any = precision_of("fp16", CPU)
    replica = replica_of(model, precision)
    replica.gradients_of(*batch())
    scale = precision._scaler.get_scale()
    assert model.weight.grad is not None
    model.weight.grad[0, 0] = math.inf
    precision.update(replica)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not replica.optimizer.state  # no momentum of it either
    assert model.weight.grad is None  # or the next step would add to it
    assert precision._scaler.get_scale() == scale / 2
    replica.gradients_of(*batch())
    precision.update(replica)
    assert not torch.equal(model.weight, before["weight"])


OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from ddpbench.workloads import NoOptions, Workload


class Yes(Workload[NoOptions]):
    name = summary = "yes"
    options = NoOptions

    def model(self, options):
        return nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())

    def dataset(self, options):
        return TensorDataset(torch.randn(32, 4), torch.rand(32, 1))

    def loss(self, outputs, targets):
        # Of bf16 outputs and float32 targets torch computes it under autocast alone.
        return nn.functional.binary_cross_entropy(outputs, targets)
"""


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_an_own_loss_is_tried_in_the_precision_that_it_will_run_in(tmp_path: Path, name: Any) -> None:
    path = tmp_path / f"own_{name}.py"
    path.write_text(OWN, encoding="utf-8")
    case = Case(workload=f"{path}:Yes", strategy="single", precision=name, local_batch=4, global_batch=4)
    found = inspect_workload(case)
    assert "problem" not in found, found
    assert 0 < found["loss"] < 5  # the workload's own, without a scale
