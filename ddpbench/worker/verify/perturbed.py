"""Measure how far rounding alone changes gradients and parameters, by repeating a computation with other roundings.

A loss that is multiplied by a factor, and gradients that are divided by it, are the same in exact arithmetic. All
roundings of the backward pass are others, as they are in a strategy that divides by another number of samples.
Parameters that are changed in their last digit are those of a strategy that adds the same numbers in another order.
Results that exact arithmetic determines hardly change. A gradient that is zero in exact arithmetic, such as that of a
bias before BatchNorm, is another one each time, and so is the update that Adam makes from it.
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

    It has no short binary form, so that a product with it is rounded.
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
    """Return the error that rounding explains of each number that `compute` returns: `DEVIATIONS` standard deviations.

    `compute` is called once as it is, and `REPETITIONS` times in the context `disturbed(seed)`. Complex numbers are
    returned as two real ones.
    """
    plain = {name: real(value) for name, value in compute().items()}
    squares = {name: torch.zeros_like(value) for name, value in plain.items()}
    for seed in range(REPETITIONS):
        with disturbed(seed):
            again = compute()
        for name in squares.keys() & again.keys():
            squares[name] += (real(again[name]) - plain[name]) ** 2
    return {name: DEVIATIONS * (value / REPETITIONS).sqrt() for name, value in squares.items()}
