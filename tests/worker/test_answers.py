"""Return values of a user's own replica in a proof: invalid ones are refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddpbench.strategies import Promise, Replica
from ddpbench.strategies.base import CompensatedReplica, OrderedReplica, PeriodicReplica
from ddpbench.worker.verify.answers import averaging_of, check_promised, kept_of, log_of

GRADIENTS = {"weight": torch.ones(2, 3)}


class Plain(Replica):
    answer: Any = None

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        raise NotImplementedError


class Kept(Plain, CompensatedReplica):
    def kept(self) -> Any:
        return self.answer


class Due(Plain, PeriodicReplica):
    def due(self, step: int) -> Any:
        return self.answer


class Log(Plain, OrderedReplica):
    def log(self) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("promise", "wanted"),
    [("delayed", "CompensatedReplica"), ("averaged", "PeriodicReplica"), ("ordered", "OrderedReplica")],
)
def test_a_promise_that_the_replica_cannot_show_is_told(promise: Promise, wanted: str) -> None:
    said = rf"Mine promises '{promise}', but its build\(\) returned a Plain: .*\.{wanted}, or"
    with pytest.raises(TypeError, match=said):
        check_promised(Plain(), "Mine", promise)
    check_promised(Plain(), "Mine", "gradients")


def test_steps_that_are_exact_are_counted() -> None:
    with pytest.raises(TypeError, match="Kept: its exact_steps is None; it must be a whole number"):
        check_promised(Kept(), "Mine", "delayed")
    right = Kept()
    right.exact_steps = 0
    check_promised(right, "Mine", "delayed")


@pytest.mark.parametrize("roundoff", [0.2, -1.0, float("nan"), None, "fp8"])
def test_gradients_that_are_rounded_too_coarsely_to_prove_anything_are_refused(roundoff: Any) -> None:
    coarse = Plain()
    coarse.unit_roundoff = roundoff
    said = r"Mine: its unit_roundoff is .*; it must be a number from 0 to 0\.125\. With a coarser"
    with pytest.raises(TypeError, match=said):
        check_promised(coarse, "Mine", "gradients")
    coarse.unit_roundoff = 2.0**-3
    check_promised(coarse, "Mine", "gradients")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "returned None"),
        ({"weight": [1.0]}, "returned a dict that is not of tensors"),
        ({"bias": torch.ones(2)}, "has no tensor for weight"),
        ({"weight": torch.ones(6)}, r"has a tensor of shape \(6,\) for weight, which has shape \(2, 3\)"),
    ],
)
def test_what_is_kept_is_a_tensor_of_every_gradient(answer: Any, said: str) -> None:
    with pytest.raises(
        TypeError, match=rf"Kept: its kept\(\) {said}; it must return a dict with one tensor for each"
    ):
        kept_of(Kept(answer), GRADIENTS)


@pytest.mark.parametrize("answer", [None, True, ([[0], [1]],), ([0, 1], True), ([[0, 2]], False)])
def test_when_ranks_average_is_said_by_groups_of_them(answer: Any) -> None:
    with pytest.raises(
        TypeError, match=r"Due: its due\(3\) returned .*; it must return a pair: the groups of ranks"
    ):
        averaging_of(Due(answer), 3, ranks=2)


@pytest.mark.parametrize("answer", [None, [1], [(1, 0, 0)], [("1", 0)]])
def test_a_servers_log_is_pairs(answer: Any) -> None:
    with pytest.raises(
        TypeError, match=r"Log: its log\(\) returned .*; it must return a list with one pair per"
    ):
        log_of(Log(answer))


def test_right_answers_are_taken() -> None:
    assert [*kept_of(Kept(GRADIENTS), GRADIENTS)] == ["weight"]
    assert averaging_of(Due(([[0], [1]], False)), 0, ranks=2) == ([[0], [1]], False)
    assert log_of(Log([(1, 0), (2, 0)])) == [(1, 0), (2, 0)]
