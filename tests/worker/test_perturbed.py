"""Gradients that are rounding errors only fail no proof, and wrong training of the same models is still found."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddpbench.worker.training.precision import FULL
from ddpbench.worker.training.types import NumberTypes
from ddpbench.worker.verify.perturbed import REPETITIONS, factor_of, perturb, rounding_of
from ddpbench.worker.verify.tolerances import Tolerances
from ddpbench.worker.verify.unproved import without_rounding
from tests.ranks import run_ranks
from tests.worker.own_cases import own_case
from tests.worker.test_odd_models import proved

FILE = Path(__file__).parent / "rounding_models.py"
Step = Callable[..., torch.Tensor]


def scaled(right: Step, replica: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Multiply all gradients by 1.01."""
    loss = right(replica, inputs, targets)
    for each in replica.job.model.parameters():
        each.grad.mul_(1.01)
    return loss


def lone_bias(right: Step, replica: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Leave the last bias with the gradient of the first third of the samples, as if it were never synchronised."""
    model = replica.job.model
    replica.job.loss(model(first(inputs, 1)), targets).backward()
    alone = [each.grad.clone() for each in model.parameters()][-2]
    model.zero_grad()
    loss = right(replica, inputs, targets)
    list(model.parameters())[-2].grad.copy_(alone)
    return loss


def left_out(right: Step, replica: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Train twice on the first third of the samples, as if the last rank were left out."""
    again = [torch.cat(each) for each in zip(first(inputs, 2), first(inputs, 1), strict=True)]
    return right(replica, again, targets)


def first(batch: Any, thirds: int) -> list[torch.Tensor]:
    return [each[: thirds * len(each) // 3] for each in batch]


def summed_biases(right: Step, replica: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Sum the biases' gradients instead of averaging them."""
    loss = right(replica, inputs, targets)
    for name, each in replica.job.model.named_parameters():
        if name.endswith("bias"):
            each.grad.mul_(3)
    return loss


def weak_doubled(right: Step, replica: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Double a gradient that is small, but no rounding error."""
    loss = right(replica, inputs, targets)
    for name, each in replica.job.model.named_parameters():
        if name.endswith("weak"):
            each.grad.mul_(2)
    return loss


def partly_reversed(right: Step, replica: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Reverse four numbers of the gradient of BatchNorm's bias."""
    loss = right(replica, inputs, targets)
    dict(replica.job.model.named_parameters())["network.1.bias"].grad[:4].neg_()
    return loss


def untrained_gate(right: Step, replica: Any, inputs: Any, targets: Any) -> torch.Tensor:
    """Never train the gates."""
    loss = right(replica, inputs, targets)
    for name, each in replica.job.model.named_parameters():
        if name.endswith("gate"):
            each.grad.zero_()
    return loss


PLANTS = {
    each.__name__: each
    for each in (untrained_gate, scaled, lone_bias, left_out, summed_biases, weak_doubled, partly_reversed)
}


def failing(rank: int, processes: int, name: str, strategy: str, ranks: int, planted: str) -> list[str]:
    """Return the comparisons that fail, as `compared (type): note`, with a fault that is planted in the strategy."""
    from ddpbench.strategies.data_parallel import ThreadedReplica
    from ddpbench.strategies.ddp.replica import DdpReplica
    from ddpbench.strategies.post_local_sgd.replica import PostLocalSgdReplica

    if planted:
        kinds: dict[str, Any] = {
            "data_parallel": ThreadedReplica,
            "post_local_sgd": PostLocalSgdReplica,
            "zero1": DdpReplica,
        }
        kind, wrong = kinds[strategy], PLANTS[planted]
        right = kind.gradients_of
        kind.gradients_of = lambda self, inputs, targets: wrong(right, self, inputs, targets)
    found, _ = proved(own_case(FILE, name, strategy, ranks), rank, processes)
    decisive = [one for one in found if one.compared.startswith(("gradients, same", "parameters"))]
    assert all(one.was_made for one in decisive), decisive
    return [f"{one.compared} ({one.dtype}): {one.error:.3g} {one.note}" for one in found if not one.passed]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [3, 5])
def test_a_bias_before_a_batch_norm_fails_no_proof(ranks: int) -> None:
    assert run_ranks(failing, 1, "ConvNorm", "data_parallel", ranks, "") == [[]]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("planted", "blamed"),
    [
        ("scaled", ""),
        ("lone_bias", "network.5.bias"),
        ("left_out", ""),
        ("summed_biases", ".bias"),  # several are wrong by the same factor
        ("weak_doubled", "network.5.weak"),
    ],
)
def test_wrong_gradients_next_to_rounding_errors_are_found_in_float32(planted: str, blamed: str) -> None:
    (found,) = run_ranks(failing, 1, "ConvNorm", "data_parallel", 3, planted)
    (single,) = [each for each in found if each.startswith("gradients, same shards (float32)")]
    assert blamed in single


@pytest.mark.ranks
def test_updates_of_rounding_errors_fail_no_proof() -> None:
    assert run_ranks(failing, 3, "LinearNorm", "post_local_sgd", 3, "") == [[], [], []]


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", ["post_local_sgd", "zero1"])
def test_wrong_updates_next_to_rounding_errors_are_found_in_float32(strategy: str) -> None:
    for found in run_ranks(failing, 3, "LinearNorm", strategy, 3, "partly_reversed"):
        assert any(each.startswith("parameters") and "(float32)" in each for each in found)


@pytest.mark.ranks
def test_a_model_that_is_sensitive_at_its_initial_state_hides_no_wrong_update() -> None:
    """Gates begin where their clamp ends, so that a change of their last digit changes the whole update."""
    assert run_ranks(failing, 2, "Gated", "post_local_sgd", 2, "") == [[], []]
    for found in run_ranks(failing, 2, "Gated", "post_local_sgd", 2, "untrained_gate"):
        assert {"float64", "float32"} == {each.partition("(")[2].partition(")")[0] for each in found}


def test_the_rounding_of_a_sum_is_measured_and_exact_results_have_none() -> None:
    noise = torch.Generator().manual_seed(0)

    def compute() -> dict[str, torch.Tensor]:
        return {"exact": torch.ones(4), "rounded": 1e-6 * torch.randn(4000, generator=noise)}

    found = rounding_of(compute, lambda _: nullcontext())
    assert bool((found["exact"] == 0).all())
    assert float(found["rounded"].square().mean().sqrt()) == pytest.approx(4 * 2**0.5 * 1e-6, rel=0.05)


def test_parameters_change_in_their_last_digit_and_zeros_stay() -> None:
    model = nn.Linear(100, 10).requires_grad_(False)
    model.bias.zero_()
    before = model.weight.clone()
    perturb(model, 0)
    changed = (model.weight - before).abs()
    assert 0 < float(changed.max()) <= 2 * torch.finfo(torch.float32).eps * float(before.abs().max())
    assert bool((changed > 0).float().mean() > 0.9)
    assert not bool(model.bias.any())


def test_products_with_factors_of_losses_are_rounded() -> None:
    factors = [factor_of(seed) for seed in range(REPETITIONS)]
    assert len(set(factors)) == REPETITIONS
    assert all(1 < each < 2 and each * 2**20 % 1 for each in factors)


def test_only_errors_within_rounding_are_left_out() -> None:
    before = {"a": torch.zeros(4)}
    expected = {"a": torch.tensor([1.0, 1.0, 1.0, 1.0])}
    own = {"a": torch.tensor([1.0, 1.5, -1.0, 1.0])}
    rounding = {"a": torch.tensor([0.0, 0.0, 3.0, 0.0])}
    error, decided = without_rounding(before, own, expected, rounding)
    assert error == pytest.approx(0.5 / 2)
    assert decided == pytest.approx(1 / 2)


def test_rounding_that_is_not_a_number_explains_nothing() -> None:
    expected = {"a": torch.tensor([1.0, 1.0])}
    rounding = {"a": torch.tensor([math.nan, 0.0])}
    found = without_rounding({"a": torch.zeros(2)}, {"a": torch.tensor([1.5, 1.0])}, expected, rounding)
    assert found == (pytest.approx(0.5 / math.sqrt(2)), pytest.approx(1 / math.sqrt(2)))


def test_no_more_than_a_part_of_the_whole_gradient_is_allowed_as_rounding() -> None:
    tolerances = Tolerances(NumberTypes(cast=torch.float32, given=(torch.float32,)), FULL)
    expected = {"large": torch.ones(1), "zero": torch.zeros(1)}
    tolerances.allow_rounding({"zero": 1.0})
    assert tolerances.worst(expected | {"zero": torch.full((1,), 0.99e-4)}, expected)[0] < tolerances.gradient
    error, name = tolerances.worst(expected | {"zero": torch.full((1,), 1.01e-4)}, expected)
    assert (error > tolerances.gradient, name) == (True, "zero")
