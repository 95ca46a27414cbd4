"""Measure how much rounding alone changes gradients and parameters: repeat a computation with different roundings.

One method multiplies the loss by a factor and divides the gradients by it, so that all roundings of a linear backward
pass differ, as in a strategy that divides by a different number of samples. The other changes parameters in their last
digit, as in a strategy that adds numbers in a different order. A gradient that is zero in exact arithmetic, such as
that of a bias before BatchNorm, is different each time, and so is Adam's update from it.

Results also change at kinks of the model, such as a clamped gate, and in backward passes that are not linear. This
could hide a wrong update. So a case may pass by this measurement only in float32, and only if float64 has proved it
without. In other types, it can only leave a case unproved, and parameters are not changed, because their last digit may
cross a kink.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from ddpbench.worker.verify.rounding import DEVIATIONS, real
from ddpbench.worker.verify.values import Tensors

REPETITIONS = 8


def factor_of(seed: int) -> float:
    """Return a factor for a loss, from 1 to 2 and different for each seed below `REPETITIONS`.

    The factor has no short binary form, so that products with it are rounded.
    """
    return 1 + (seed + 1) / (REPETITIONS + 1)


def perturb(model: torch.nn.Module, seed: int) -> None:
    """Change each number of a model's parameters by its type's machine epsilon, up or down at random by `seed`.

    The same seed gives the same changes on every rank. Zeros stay zero.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            if each.layout == torch.strided and (each.is_floating_point() or each.is_complex()):
                signs = torch.randint(0, 2, each.shape, generator=generator) * 2 - 1
                each.mul_(1 + torch.finfo(each.dtype).eps * signs.to(each.device, each.real.dtype))


def rounding_of(
    compute: Callable[[], Tensors], disturbed: Callable[[int], AbstractContextManager[None]]
) -> Tensors:
    """Return the error that rounding explains in each number from `compute`: `DEVIATIONS` standard deviations.

    `compute` is called once as it is, and `REPETITIONS` times in the context `disturbed(seed)`. For a complex number,
    two real numbers are returned.
    """
    return repeated(compute, disturbed)[1]


def repeated(
    compute: Callable[[], Tensors], disturbed: Callable[[int], AbstractContextManager[None]]
) -> tuple[Tensors, Tensors]:
    """Return the plain result of `compute`, and the result of `rounding_of`; complex numbers as two real numbers."""
    plain = {name: real(value) for name, value in compute().items()}
    squares = {name: torch.zeros_like(value) for name, value in plain.items()}
    for seed in range(REPETITIONS):
        with disturbed(seed):
            again = compute()
        for name in squares.keys() & again.keys():
            squares[name] += (real(again[name]) - plain[name]) ** 2
    return plain, {name: DEVIATIONS * (value / REPETITIONS).sqrt() for name, value in squares.items()}
