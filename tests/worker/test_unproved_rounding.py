"""A comparison that exceeds its limit by rounding alone is unproved, and wrong training of the same models is found."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.records import ROUNDING_ALONE, Proof, why_unproved
from ddpbench.strategies.own_step import around_backward
from ddpbench.worker.training.precision import FULL
from ddpbench.worker.training.types import NumberTypes
from ddpbench.worker.verify import unproved
from ddpbench.worker.verify.tolerances import Tolerances
from ddpbench.worker.verify.unproved import Explained, FailedChange, FailedGradients, rounding_note
from tests.ranks import run_ranks
from tests.worker.faulty import FAULTS, planted
from tests.worker.own_cases import own_case
from tests.worker.test_odd_models import proved

FILE = Path(__file__).parent / "rounding_models.py"
DOUBLE = NumberTypes(cast=torch.float64, given=(torch.float32,))


def verdicts(rank: int, processes: int, name: str, strategy: str, faults: tuple[str, ...]) -> dict[str, str]:
    """Return a case's result with each of these planted faults."""
    from ddpbench.strategies.data_parallel import ThreadedReplica
    from ddpbench.strategies.ddp.replica import DdpReplica
    from ddpbench.strategies.post_local_sgd.replica import PostLocalSgdReplica

    kinds: dict[str, Any] = {"data_parallel": ThreadedReplica, "post_local_sgd": PostLocalSgdReplica}
    results = {}
    for fault in faults:
        with planted(kinds.get(strategy, DdpReplica), fault, rank, 3):
            found, _ = proved(own_case(FILE, name, strategy, 3), rank, processes)
        diverged = [one for one in found if not one.passed]
        results[fault] = "diverged" if diverged else why_unproved(found) or "proved"
    return results


def one(name: str, strategy: str, *faults: str) -> dict[str, str]:
    results: dict[str, str] = {}
    for fault in faults:
        ranks = 1 if strategy == "data_parallel" else 3
        results |= run_ranks(verdicts, ranks, name, strategy, (fault,))[0]
    return {
        fault: "unproved" if result.startswith(ROUNDING_ALONE) else result
        for fault, result in results.items()
    }


WITHIN_ROUNDING = ("unproved", "proved")
"""Verdicts on errors that rounding explains. It depends on the processor whether such an error shows at all."""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("LionSteps", "ddp"),
        ("PriceSteps", "ddp"),
        ("Bytes", "data_parallel"),
        ("TinyEpsilon", "post_local_sgd"),
    ],
)
def test_an_error_within_rounding_is_unproved_and_a_weight_that_is_never_trained_diverges(
    name: str, strategy: str
) -> None:
    found = one(name, strategy, "", "weight_skipped")
    assert found["weight_skipped"] == "diverged"
    assert found[""] in WITHIN_ROUNDING


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "strategy"), [("NormalisedSteps", "ddp"), ("NormalisedPlain", "post_local_sgd")]
)
def test_a_fault_is_not_rounding_where_a_backward_is_not_linear(name: str, strategy: str) -> None:
    """Another factor of the loss changes such a training by more than the fault does, and not by rounding."""
    assert one(name, strategy, "", "scaled") == {"": "proved", "scaled": "diverged"}


@pytest.mark.ranks
def test_rounding_in_float32_is_measured_in_steps_too_if_float64_proves_them() -> None:
    assert one("AdagradSteps", "ddp", "", "rank_left_out") == {"": "proved", "rank_left_out": "diverged"}


@pytest.mark.ranks
def test_parameters_that_are_averaged_are_compared_though_float64_is_not() -> None:
    assert one("Bytes", "post_local_sgd", "") == {"": "proved"}


@pytest.mark.ranks
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "strategy", "within"),
    [
        ("Plain", "ddp", ()),
        ("Steps", "ddp", ()),
        ("LionSteps", "ddp", ("scaled", "divided_twice", "bias_skipped")),
        ("PriceSteps", "ddp", ("scaled", "divided_twice", "bias_skipped")),
        ("Bytes", "data_parallel", ("bias_skipped",)),
        ("TinyEpsilon", "post_local_sgd", ("scaled", "divided_twice", "bias_skipped")),
    ],
)
def test_planted_faults_diverge_unless_they_are_within_rounding(
    name: str, strategy: str, within: Sequence[str]
) -> None:
    """Lion and Adam make the same updates of scaled gradients, and no bias before BatchNorm has a gradient.

    With a loss, DDP's and data_parallel's gradients are compared in the first step only, so that a stale one is not
    seen. Threads share an optimizer.
    """
    unseen = {
        ("Plain", "ddp"): ("stale",),
        ("Bytes", "data_parallel"): ("stale", "other_state"),
        ("TinyEpsilon", "post_local_sgd"): ("unsynchronised",),
    }.get((name, strategy), ())
    faults = [each for each in FAULTS if each not in unseen]
    found = one(name, strategy, *faults)
    assert all(found[fault] in (WITHIN_ROUNDING if fault in within else ("diverged",)) for fault in faults), (
        found
    )


def test_a_note_on_rounding_leaves_a_case_unproved_in_any_type() -> None:
    def proof(dtype: str, note: str = "") -> Proof:
        tolerance = math.inf if note else 0.05
        return Proof(
            compared="parameters, same samples",
            dtype=dtype,
            error=0.0,
            tolerance=tolerance,
            passed=True,
            note=note,
        )

    note = f"{ROUNDING_ALONE} 0.bias as much (error 3e-06, by rounding 7e-06)"
    assert why_unproved([proof("float64", note), proof("float32")]) == note
    assert why_unproved([proof("float64"), proof("float32", "float64 proves it")]) == ""


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_backward_is_multiplied_however_it_is_called(factor: float) -> None:
    weight, slope = torch.ones(2, requires_grad=True), torch.tensor([1.0, 2.0])
    calls: list[Callable[[], None]] = [
        lambda: (weight * slope).sum().backward(),
        lambda: (weight * 1).backward(slope),
        lambda: torch.autograd.backward([weight * 1], grad_tensors=[slope]),
        lambda: torch.autograd.backward(tensors=(weight * slope).sum()),
        lambda: torch.autograd.backward((weight * slope).sum(), inputs=[weight]),
    ]
    for call in calls:
        weight.grad = None
        with around_backward(lambda run: run(), (threading.get_ident(),), factor):
            call()
        assert weight.grad is not None
        assert torch.equal(weight.grad, factor * slope)


class Alone:
    """The prover of a single process."""

    processes, group = 1, None

    def agreed(self, value: float) -> float:
        return value


def note_on(*found: Explained) -> str:
    prover: Any = Alone()
    return rounding_note(prover, found)


def test_the_note_has_the_parameter_with_the_largest_error_and_any_unexplained_error_leaves_none() -> None:
    small, large = Explained(True, "network.a", 1e-5, 2e-5), Explained(True, "network.b", 3e-5, 4e-5)
    assert note_on(small, large) == f"{ROUNDING_ALONE} b as much (error 3e-05, by rounding 4e-05)"
    assert note_on(small, Explained(False, "network.b", 3e-5, 4e-5)) == ""


def explained(
    monkeypatch: pytest.MonkeyPatch,
    own: list[float],
    rounding: list[float],
    *,
    again: float = 1.0,
    twice: float = 1.0,
) -> bool:
    """Return whether rounding explains an error of parameters that change from 0 to 1.

    `again` repeats the change, and `twice` repeats it with twice the loss.
    """
    monkeypatch.setattr(unproved, "changes_of_twice", lambda *_: {"a": torch.full((2,), twice)})
    measured = {"a": torch.full((2,), again)}, {"a": torch.tensor(rounding)}
    monkeypatch.setattr(unproved, "rounding_of_changes", lambda *_, **__: measured)
    one_process: Any = None
    before, after, expected = ({"a": each} for each in (torch.zeros(2), torch.tensor(own), torch.ones(2)))
    return FailedChange(before, after, expected, 1e-6, lambda _: {}).explained(one_process).whole


def test_rounding_explains_an_error_of_its_size_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explained(monkeypatch, [1.0, 1.5], [0.0, 0.6])
    assert not explained(monkeypatch, [1.0, 1.5], [0.0, 0.4])
    assert not explained(monkeypatch, [1.01, 1.5], [0.0, 0.6])


@pytest.mark.parametrize("size", [math.nan, math.inf])
def test_rounding_that_is_not_finite_explains_nothing(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    assert not explained(monkeypatch, [1.0, 1.5], [0.0, size])


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_parameter_that_is_not_finite_is_not_explained(
    monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    assert not explained(monkeypatch, [1.0, wrong], [0.0, 0.6])


def test_a_training_that_does_not_repeat_is_not_explained_by_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not explained(monkeypatch, [1.0, 1.5], [0.0, 0.6], again=1.2)
    assert not explained(monkeypatch, [1.0, 1.5], [0.0, 0.6], again=math.nan)


@pytest.mark.parametrize("twice", [1.01, 0.5, math.nan])
def test_a_backward_that_is_not_linear_is_not_explained_by_rounding(
    monkeypatch: pytest.MonkeyPatch, twice: float
) -> None:
    """For example, if a hook normalises gradients."""
    assert not explained(monkeypatch, [1.0, 1.5], [0.0, 0.6], twice=twice)


def test_gradients_are_explained_by_their_own_rounding_and_none_without_a_gradient() -> None:
    tolerances = Tolerances(DOUBLE, FULL)
    expected = {"large": torch.ones(1).double(), "zero": torch.zeros(1).double()}
    own = expected | {"zero": torch.full((1,), 5e-11).double()}
    failed = FailedGradients(own, expected)
    assert failed.explained(tolerances, {"zero": 1e-10}).whole
    for rounding in ({"zero": 1e-11}, {"large": 1e-10}, {"zero": math.nan}, {"zero": math.inf}, {}):
        assert not failed.explained(tolerances, rounding).whole
    nothing = FailedGradients(own, {name: torch.zeros_like(value) for name, value in expected.items()})
    assert not nothing.explained(tolerances, {"zero": 1e-10, "large": 1e-10}).whole
