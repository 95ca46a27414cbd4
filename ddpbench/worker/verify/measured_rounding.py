"""Measure how rounding affects one process's averaged gradients, and the changes of its parameters in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from ddpbench.worker.verify.one_process import OneProcess
from ddpbench.worker.verify.perturbed import factor_of, repeated, rounding_of
from ddpbench.worker.verify.values import Tensors, norm


def rounding_of_average(one: OneProcess) -> dict[str, float]:
    """Return how large an error of the first step's averaged gradients rounding explains, by parameter name.

    Errors are fractions of the norm of all gradients together. All ranks must call this function together.
    """
    whole = float(norm(list(one.average_afresh().values())))
    errors = rounding_of(one.average_afresh, partial(_disturbed, one))
    return {name: float(norm([error])) / whole if whole else 0.0 for name, error in errors.items()}


def rounding_of_changes(
    one: OneProcess, train: Callable[[torch.nn.Module], Tensors], *, parameters: bool = True
) -> tuple[Tensors, Tensors]:
    """Repeat a training; return the changes of parameters, and the error that rounding explains in each number.

    `train` trains a model from its initial state, and returns its parameters. If `parameters`, the last digits of the
    initial parameters are changed too. All ranks must call this function together.
    """

    def changes() -> Tensors:
        model = one.fresh()
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        return {name: after - before[name] for name, after in train(model).items()}

    return repeated(changes, partial(_disturbed, one, parameters=parameters))


@contextmanager
def _disturbed(one: OneProcess, seed: int, *, parameters: bool = False) -> Iterator[None]:
    """Make `one` compute with different roundings. If `parameters`, its parameters also differ in their last digit."""
    one.factor, one.perturbation = factor_of(seed), seed if parameters else None
    try:
        yield
    finally:
        one.factor, one.perturbation = 1.0, None
