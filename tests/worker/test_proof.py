"""The proof's arithmetic: what counts as equal, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ddpbench.worker.verify.comparing import SMALL_GRADIENT, relative_error


def test_the_error_is_relative_to_each_parameters_own_gradient() -> None:
    reference = [torch.tensor([3.0, 4.0]), torch.tensor([1.0])]
    own = [torch.tensor([3.0, 4.5]), torch.tensor([1.0])]
    assert relative_error(own, reference) == pytest.approx(0.5 / 5)
    assert relative_error(reference, reference) == 0.0


def test_a_missing_average_is_an_error_of_one() -> None:
    reference = [torch.tensor([3.0, -4.0]), torch.tensor([2.0])]
    assert relative_error([2 * gradient for gradient in reference], reference) == pytest.approx(1.0)


def test_a_gradient_that_is_all_rounding_is_judged_by_the_whole() -> None:
    # Attention's key bias: zero in exact arithmetic. 1e-9 of noise beside a gradient of norm 1 is no error.
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
