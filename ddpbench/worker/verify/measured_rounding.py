"""Measure how rounding affects one process's averaged gradients, and the changes of its parameters in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ddpbench.worker.verify.one_process import OneProcess
from ddpbench.worker.verify.perturbed import factor_of, repeated, rounding_of
from ddpbench.worker.verify.values import Tensors, norm


def rounding_of_average(one: OneProcess) -> dict[str, float]:
    """Return the error that rounding explains in the first step's averaged gradients, by parameter name.

    Errors are fractions of the norm of all gradients together. All ranks must call this function together.
    """
    whole = float(norm(list(one.average_afresh().values())))
    errors = rounding_of(one.average_afresh, lambda seed: _disturbed(one, factor_of(seed)))
    return {name: float(norm([error])) / whole if whole else 0.0 for name, error in errors.items()}


def rounding_of_changes(
    one: OneProcess, train: Callable[[torch.nn.Module], Tensors], *, parameters: bool = True
) -> tuple[Tensors, Tensors]:
    """Repeat a training; return the changes of parameters, and the error that rounding explains in each number.

    `train` trains a model from its initial state, and returns its parameters. If `parameters`, the last digits of the
    initial parameters are changed too. All ranks must call this function together.
    """

    return repeated(
        lambda: _changes(one, train),
        lambda seed: _disturbed(one, factor_of(seed), seed if parameters else None),
    )


def changes_of_twice(one: OneProcess, train: Callable[[torch.nn.Module], Tensors]) -> Tensors:
    """Repeat a training with twice the loss and half its gradients; return the changes of parameters.

    Both factors are exact, so a backward that is linear in the loss gives the same bits. For others, such as one that
    normalises gradients, factors do not measure rounding. All ranks must call this function together.
    """
    with _disturbed(one, 2.0, None):
        return _changes(one, train)


def _changes(one: OneProcess, train: Callable[[torch.nn.Module], Tensors]) -> Tensors:
    model = one.fresh()
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    return {name: after - before[name] for name, after in train(model).items()}


@contextmanager
def _disturbed(one: OneProcess, factor: float, seed: int | None = None) -> Iterator[None]:
    one.factor, one.perturbation = factor, seed
    try:
        yield
    finally:
        one.factor, one.perturbation = 1.0, None
