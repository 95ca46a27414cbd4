"""Autocast in every thread and strategy: a step worked out by hand, and every strategy's proof in every precision."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from ddpbench.records import Proof
from ddpbench.worker.precision import precision_of
from ddpbench.worker.proof import AUTOCAST_ROUNDOFFS

CPU = torch.device("cpu")
INPUTS, TARGETS = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [1.0]])


def one_weight(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def small_mean_square(outputs: Any, targets: Any) -> torch.Tensor:
    """A 32nd of the mean square: its slopes times the first scale of 65536 still fit into fp16."""
    return (outputs.float() - targets).square().mean() / 32


@pytest.mark.parametrize(("name", "scale"), [("full", 1), ("bf16", 1), ("fp16", 65536)])
def test_a_gradient_is_the_one_worked_out_by_hand(name: str, scale: int) -> None:
    # outputs 2 and 4; errors 1 and 3; loss (1 + 9) / 2 / 32; gradient (1·1 + 3·2) / 32. All exact in 8 bits.
    precision, model = precision_of(name, CPU), one_weight(2.0)
    loss = precision.loss(small_mean_square)(precision.wrap(model)(INPUTS), TARGETS)
    loss.backward()
    assert loss.item() == scale * 5 / 32
    assert precision.true_loss(loss.detach()) == 5 / 32
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[scale * 7 / 32]]
    assert precision.true_gradient(model.weight.grad).tolist() == [[7 / 32]]


def test_another_thread_computes_in_the_same_precision() -> None:
    # Autocast is a thread's own: data_parallel's replicas run in others than the step.
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


@pytest.mark.multiprocess
def test_every_strategy_is_proved_in_every_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpbench.launch.catalog import TableCatalog
    from ddpbench.launch.verify import verify
    from ddpbench.machine.hardware import read_hardware
    from ddpbench.spec import expand, parse_experiment

    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
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
        assert unit / 50 < whole[name].error < 4 * unit  # rounding there is, and no more than that
