"""The proof's arithmetic: which values count as equal, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddpbench.records import Proof
from ddpbench.worker.rank.rank import _error_words
from ddpbench.worker.training.precision import FULL
from ddpbench.worker.training.types import NumberTypes
from ddpbench.worker.verify.comparing import Comparer
from ddpbench.worker.verify.proof import Prover
from ddpbench.worker.verify.tolerances import SMALL_GRADIENT, relative_error
from ddpbench.worker.verify.values import Tensors


def test_the_error_is_relative_to_each_parameters_own_gradient() -> None:
    reference = [torch.tensor([3.0, 4.0]), torch.tensor([1.0])]
    own = [torch.tensor([3.0, 4.5]), torch.tensor([1.0])]
    assert relative_error(own, reference) == pytest.approx(0.5 / 5)
    assert relative_error(reference, reference) == 0.0


def test_a_missing_average_is_an_error_of_one() -> None:
    reference = [torch.tensor([3.0, -4.0]), torch.tensor([2.0])]
    assert relative_error([2 * gradient for gradient in reference], reference) == pytest.approx(1.0)


def test_a_gradient_that_is_all_rounding_is_judged_by_the_whole() -> None:
    # Attention's key bias: zero in exact arithmetic. Noise of 1e-9 next to a gradient of norm 1 is not an error.
    reference = [torch.tensor([1.0]), torch.tensor([1e-12])]
    own = [torch.tensor([1.0]), torch.tensor([1e-9])]
    assert relative_error(own, reference) == pytest.approx(1e-9 / SMALL_GRADIENT, rel=1e-2)


def test_a_small_gradient_that_matters_is_still_compared() -> None:
    reference = [torch.tensor([1.0]), torch.tensor([1e-2])]
    own = [torch.tensor([1.0]), torch.tensor([0.0])]
    assert relative_error(own, reference) == pytest.approx(1.0)


def test_nan_and_another_shape_are_infinitely_wrong() -> None:
    reference = [torch.tensor([1.0])]
    assert relative_error([torch.tensor([math.nan])], reference) == math.inf
    assert relative_error([torch.ones(2)], reference) == math.inf
    assert relative_error([], reference) == math.inf


def held_change(own: Tensors, expected: Tensors, writes: list[str] | None = None) -> tuple[Proof, int]:
    """Compare updates from zero with one process's; return also how many values the ranks agreed on."""
    agreed: list[float] = []

    def noted(value: float) -> float:
        agreed.append(value)
        return value

    prover: Any = SimpleNamespace(training=None, proves_double=True, proved_in_double=set(), agreed=noted)
    comparer = Comparer(prover, NumberTypes(cast=torch.float64, given=(torch.float64,)), FULL, [])
    comparer.model.writes = writes or []
    before = {name: torch.zeros_like(each) for name, each in own.items()}
    proof = comparer.change("update, same gradients", before, own, expected)
    return proof, len(agreed)


def test_ranks_agree_on_as_many_values_whatever_the_forward_of_one_writes() -> None:
    """Each rank takes part in a collective, which would pair with another or wait forever."""
    made = {"kept": torch.ones(2), "written": torch.ones(2)}
    plain, written = held_change(made, made), held_change(made, made, ["written"])
    assert plain[0].passed
    assert "these are left out of this comparison" in written[0].note
    assert plain[1] == written[1]


@pytest.mark.parametrize(
    ("own", "expected", "compared"),
    [(math.inf, math.nan, False), (1.0, math.inf, True), (math.inf, 1.0, True)],
)
def test_values_that_are_not_finite_on_one_side_alone_fail(
    own: float, expected: float, compared: bool
) -> None:
    proof, _ = held_change({"weight": torch.tensor([own])}, {"weight": torch.tensor([expected])})
    assert proof.was_made == compared
    assert proof.passed != compared


@pytest.fixture
def tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow TF32, as a user's script may do."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_proof_on_a_gpu_goes_without_tf32(device: str) -> None:
    """TF32 rounds to 10 bits, and a shard and the whole batch are rounded differently."""
    begun: list[tuple[bool, str]] = []

    def check_even(_: object) -> None:
        begun.append((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()))
        raise StopIteration

    training: Any = SimpleNamespace(
        device=torch.device(device), place=SimpleNamespace(rank=0, processes=1), check_even=check_even
    )
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(Prover(training, SimpleNamespace(), lambda: None).run())  # type: ignore[arg-type]
    assert begun == [(device != "cuda", "highest" if device == "cuda" else "high")]


def test_small_values_of_one_type_are_averaged_with_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[tuple[int, torch.dtype]] = []

    def all_reduce(total: torch.Tensor, group: object) -> None:
        messages.append((total.numel(), total.dtype))
        total += torch.arange(total.numel())  # of the other rank

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    monkeypatch.setattr("ddpbench.worker.verify.proof._MOST_TOGETHER", 6)
    prover: Any = SimpleNamespace(processes=2, group=None)
    values = {
        "weight": torch.ones(2, 2).t(),
        "scale": torch.tensor(8.0),
        "large": torch.zeros(7),
        "double": torch.ones(1, dtype=torch.float64),
        "empty": torch.ones(0, dtype=torch.float64),
        "complex": torch.tensor([1j]),
    }
    before = {name: value.clone() for name, value in values.items()}
    averages = Prover.average(prover, values)
    assert messages == [
        (5, torch.float32),
        (7, torch.float32),
        (1, torch.float64),
        (1, torch.complex64),
    ]
    expected = {
        "weight": torch.tensor([[0.5, 1.0], [1.5, 2.0]]),
        "scale": torch.tensor(6.0),
        "large": torch.arange(7) / 2,
        "double": torch.tensor([0.5], dtype=torch.float64),
        "empty": torch.ones(0, dtype=torch.float64),
        "complex": torch.tensor([0.5j]),
    }
    assert list(averages) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(averages[name], value, rtol=0, atol=0)
        assert torch.equal(values[name], before[name])


def test_values_that_ranks_agree_on_go_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[int] = []

    def all_reduce(largest: torch.Tensor, op: object, group: object) -> None:
        messages.append(largest.numel())
        torch.maximum(largest, torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64), out=largest)

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    prover: Any = SimpleNamespace(processes=2, group=None)
    assert Prover.all_agreed(prover, [3.0, 4.0, math.inf]) == [3.0, 5.0, math.inf]
    assert Prover.all_agreed(prover, []) == []
    assert messages == [3]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (0.5, "error 0.5, allowed 0.0001"),
        (1.004e-4, "error 0.0001004, allowed 0.0001"),
        (math.inf, "error inf, allowed 0.0001"),
    ],
)
def test_an_error_next_to_the_tolerance_is_told_from_it(error: float, words: str) -> None:
    proof = Proof(
        compared="gradients, same shards", dtype="float32", error=error, tolerance=1e-4, passed=False
    )
    assert _error_words(proof) == words
