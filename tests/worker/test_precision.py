"""Autocast and the loss's scale: the types computed in, in every thread and strategy; the updates that are skipped."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddpbench.measure.recorder import NullRecorder
from ddpbench.records import Proof
from ddpbench.spec import Case
from ddpbench.strategies import Job, Replica, load_strategy
from ddpbench.worker.training.precision import PrecisionPolicy, precision_of
from ddpbench.worker.verify.inspection import inspect_workload
from ddpbench.worker.verify.tolerances import AUTOCAST_ROUNDOFFS

CPU = torch.device("cpu")
INPUTS, TARGETS = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [1.0]])


def one_weight(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def small_mean_square(outputs: Any, targets: Any) -> torch.Tensor:
    """Return a 32nd of the mean square: its slopes times the first scale of 65536 still fit into fp16."""
    return (outputs.float() - targets).square().mean() / 32


def replica_of(
    model: nn.Module,
    precision: PrecisionPolicy,
    loss: Callable[[Any, Any], torch.Tensor] = nn.functional.mse_loss,
) -> Replica:
    strategy = load_strategy("single")
    job = Job(
        case=Case(workload="tests", strategy="single"),
        model=precision.wrap(model),
        loss=precision.loss(loss),
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


@pytest.mark.parametrize(("name", "scale"), [("full", 1), ("bf16", 1), ("fp16", 65536)])
def test_a_step_is_the_one_worked_out_by_hand(name: str, scale: int) -> None:
    # outputs 2 and 4; errors 1 and 3; loss (1 + 9) / 2 / 32; gradient (1·1 + 3·2) / 32. All exact in 8 bits.
    precision, model = precision_of(name, CPU), one_weight(2.0)
    replica = replica_of(model, precision, small_mean_square)
    loss = replica.gradients_of(INPUTS, TARGETS)
    assert loss.item() == scale * 5 / 32
    assert precision.true_loss(loss) == 5 / 32
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[scale * 7 / 32]]
    assert precision.true_gradient(model.weight.grad).tolist() == [[7 / 32]]
    precision.update(replica)
    assert model.weight.item() == pytest.approx(2 - 0.1 * 7 / 32, rel=1e-6)  # without the scale
    assert model.weight.grad is None


def test_another_thread_computes_in_the_same_precision() -> None:
    # Autocast belongs to a thread: data_parallel's replicas run in other threads than the step.
    wrapped = precision_of("bf16", CPU).wrap(one_weight(2.0))
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(wrapped, INPUTS).result().dtype == torch.bfloat16


def test_a_gradient_too_small_for_fp16_survives_by_the_scale() -> None:
    precision, model = precision_of("fp16", CPU), one_weight(1.0)

    def tiny(outputs: Any, targets: Any) -> torch.Tensor:
        return 1e-9 * outputs.float().sum()  # fp16's least number is 6e-8

    tiny(precision.wrap(model)(INPUTS), TARGETS).backward()
    assert model.weight.grad is not None
    assert model.weight.grad.item() == 0.0
    model.weight.grad = None
    precision.loss(tiny)(precision.wrap(model)(INPUTS), TARGETS).backward()
    assert precision.true_gradient(model.weight.grad).item() == pytest.approx(3e-9, rel=2e-3)


def test_the_unit_roundoffs_are_the_formats() -> None:
    assert precision_of("bf16", CPU).unit_roundoff == 2**-8
    assert precision_of("fp16", CPU).unit_roundoff == 2**-11


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
    name = "yes"
    options = NoOptions

    def model(self, options):
        return nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())

    def dataset(self, options):
        return TensorDataset(torch.randn(32, 4), torch.rand(32, 1))

    def loss(self, outputs, targets):
        # For bf16 outputs and float32 targets torch computes it only under autocast.
        return nn.functional.binary_cross_entropy(outputs, targets)
"""


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_an_own_loss_is_tried_in_the_precision_that_it_will_run_in(tmp_path: Path, name: Any) -> None:
    path = tmp_path / f"own_{name}.py"
    path.write_text(OWN, encoding="utf-8")
    case = Case(workload=f"{path}:Yes", strategy="single", precision=name, local_batch=4, global_batch=4)
    facts = inspect_workload(case)
    assert "problem" not in facts, facts
    assert 0 < facts["loss"] < 5  # the workload's own, without a scale


@pytest.mark.multiprocess
def test_every_strategy_is_proved_in_every_precision() -> None:
    from ddpbench.launch.catalog import TableCatalog
    from ddpbench.launch.verify import verify
    from ddpbench.machine.hardware import read_hardware
    from ddpbench.spec import expand, parse_experiment

    text = """
        [base]
        workload = "mlp"
        local_batch = 4
        world_size = 3
        device = "cpu"
        [axes]
        strategy = ["data_parallel", "ddp", "master"]
        precision = ["bf16", "fp16"]
    """
    catalog = TableCatalog()
    experiment = parse_experiment(text, catalog, name="precisions")
    entries = expand(experiment, catalog, read_hardware().devices(gpus=0))
    verdicts = verify([entry for entry in entries if not entry.added_as_baseline])
    assert len(verdicts) == 6
    for verdict in verdicts:
        assert verdict.status == "ok", verdict
        whole: dict[str, Proof] = {
            proof.dtype: proof for proof in verdict.proofs if proof.compared == "gradients, whole batch"
        }
        assert whole["float64"].error < 1e-10  # in full precision: the algorithm
        (name,) = set(whole) - {"float64"}
        unit = 2**-8 if "bf16" in name else 2**-11
        assert whole[name].tolerance == AUTOCAST_ROUNDOFFS * unit
        assert unit / 50 < whole[name].error < 4 * unit  # there is rounding, and no more than that
