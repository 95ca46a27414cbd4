"""Decide whether a failed comparison only leaves its case unproved, because other roundings change as much."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddpbench.collectives.exchange import gather_values
from ddpbench.records import ROUNDING_ALONE, ComparedQuantity, Proof
from ddpbench.worker.verify.measured_rounding import (
    changes_of_twice,
    rounding_of_average,
    rounding_of_changes,
)
from ddpbench.worker.verify.one_process import ComparingRank, OneProcess
from ddpbench.worker.verify.rounding import real
from ddpbench.worker.verify.tolerances import Tolerances
from ddpbench.worker.verify.values import Tensors, norm


@dataclass(frozen=True, slots=True)
class Explained:
    """The part of a failed comparison's error that rounding explains, on one rank."""

    whole: bool
    """True if the error is within its limit once the part that rounding explains is left out."""
    name: str
    """Name of the parameter with the largest error."""
    error: float
    rounding: float
    """Error that rounding can cause in this parameter, in the same unit as `error`."""


@dataclass(frozen=True, slots=True)
class FailedGradients:
    """A failed comparison of this rank's gradients (`own`) with one process's gradients (`expected`)."""

    own: Tensors
    expected: Tensors

    def explained(self, tolerances: Tolerances, rounding: Mapping[str, float]) -> Explained:
        """Return how much of the error `rounding` explains.

        `rounding` has each parameter's possible error, as a fraction of all gradients' norm.
        """
        error, name = tolerances.worst(self.own, self.expected)
        wider = copy.copy(tolerances)
        wider.allow_rounding({each: size for each, size in rounding.items() if math.isfinite(size)})
        whole = float(norm(list(self.expected.values())))
        unit = (
            error / float(norm([self.own[name] - self.expected[name]]))
            if error and name in self.expected
            else 0.0
        )
        measured = rounding.get(name, 0.0) * whole * unit
        within = wider.worst(self.own, self.expected)[0] <= tolerances.gradient
        return Explained(within, name, error, measured)


@dataclass(frozen=True, slots=True)
class FailedChange:
    """A failed comparison of how training changed parameters, on this rank (`own`) and in one process (`expected`)."""

    before: Tensors
    own: Tensors
    expected: Tensors
    allowed: float
    """Largest allowed relative error of the change."""
    train: Callable[[torch.nn.Module], Tensors]
    """Repeats one process's training of a model in its initial state, and returns the model's parameters."""

    def explained(self, one: OneProcess) -> Explained:
        """Repeat one process's training with other roundings; return how much of the error these explain.

        `Explained.whole` is false if training is not repeatable, or if its backward is not linear in the loss. All
        ranks must call this method together.
        """
        plain, rounding = rounding_of_changes(one, self.train, parameters=False)
        twice = changes_of_twice(one, self.train)
        known = [name for name in self.own if name in self.before]
        changes = {name: real(self.expected[name] - self.before[name]) for name in known}
        scale = float(norm(list(changes.values())))
        again = float(norm([plain[name] - changes[name] for name in known if name in plain]))
        gaps = {name: float(norm([self.own[name] - self.expected[name]])) for name in self.own}
        name = max(gaps, key=lambda each: gaps[each], default="")
        left, _ = without_rounding(self.before, self.own, self.expected, rounding)
        bent = float(
            norm([real(twice[name]) - plain[name] for name in known if name in plain and name in twice])
        )
        limit = self.allowed * scale
        repeats = plain.keys() >= set(known) and again <= limit and bent <= limit
        measured = float(norm([rounding[name]])) if name in rounding else 0.0
        return Explained(
            repeats and left <= self.allowed,
            name,
            gaps.get(name, 0.0) / scale if scale else math.inf,
            measured / scale if scale else math.inf,
        )


def without_rounding(
    before: Tensors, own: Tensors, expected: Tensors, rounding: Tensors
) -> tuple[float, float]:
    """Return the relative error of changes. Numbers whose error is within `rounding` are left out.

    Also return, as a fraction of the expected changes' norm, the changes that rounding decides. These are the changes
    for which rounding explains an error of at least half the change.
    """
    gaps, decided, whole = 0.0, 0.0, 0.0
    for name, value in own.items():
        gap, change = (
            real(value - expected[name]).abs(),
            real(expected[name] - before.get(name, expected[name])),
        )
        explained = rounding.get(name, torch.zeros_like(gap))
        explained = explained.where(explained.isfinite(), math.nan)
        # Rounding that is not finite explains no error, and is taken to decide the change.
        gaps += float((gap[~(gap <= explained)] ** 2).sum())
        decided += float((change[~(change.abs() >= 2 * explained)] ** 2).sum())
        whole += float((change**2).sum())
    return (math.sqrt(gaps / whole), math.sqrt(decided / whole)) if whole else (math.inf, 0.0)


class Failures:
    """Stores failed comparisons, and says whether rounding alone explains their errors."""

    def __init__(self, one: OneProcess, tolerances: Tolerances) -> None:
        self._one, self._tolerances = one, tolerances
        self.gradients: dict[ComparedQuantity, FailedGradients] = {}
        self._changes: dict[ComparedQuantity, dict[frozenset[str], FailedChange]] = {}
        """For each comparison, its failures, by the names of the parameters that were compared."""
        self._rounding: dict[str, float] = {}

    def add(self, compared: ComparedQuantity, failed: FailedChange) -> None:
        """Store a failed comparison of changes. It replaces an earlier one of the same parameters."""
        self._changes.setdefault(compared, {})[frozenset(failed.expected)] = failed

    def forget(self, compared: ComparedQuantity, names: Iterable[str]) -> None:
        """Forget a failed comparison of these parameters' changes, because they are about to be compared again."""
        self._changes.get(compared, {}).pop(frozenset(names), None)

    def rounding_of_average(self) -> dict[str, float]:
        """Return the rounding of averaged gradients, measured only once (see `measured_rounding`).

        All ranks must call this method together.
        """
        self._rounding = self._rounding or rounding_of_average(self._one)
        return self._rounding

    def note_on_rounding(self, proof: Proof) -> str:
        """Return a sentence if other roundings change a failed proof's reference as much as its error; else `""`.

        All ranks must call this together, after all checks for a fault of the model have found none.
        """
        if not math.isfinite(proof.error):
            return ""
        prover = self._one.prover
        if changes := list(self._changes.get(proof.compared, {}).values()):
            return rounding_note(prover, [each.explained(self._one) for each in changes])
        gradients = self.gradients.get(proof.compared)
        if gradients is None or proof.error > self._tolerances.most_rounding:
            return ""
        return rounding_note(prover, [gradients.explained(self._tolerances, self.rounding_of_average())])


def rounding_note(prover: ComparingRank, found: Sequence[Explained]) -> str:
    """Return a sentence on the largest error if rounding explains the errors on all ranks; otherwise `""`.

    All ranks must call this function together.
    """
    if prover.agreed(float(not all(each.whole for each in found))):
        return ""
    own = max(found, key=lambda each: each.error)
    every = [own]
    if prover.processes > 1:
        every = gather_values([own.name, own.error, own.rounding], _explained, prover.group)
    most = max(every, key=lambda each: each.error)
    name = most.name.removeprefix("network.")
    return f"{ROUNDING_ALONE} {name} as much (error {most.error:.2g}, by rounding {most.rounding:.2g})"


def _explained(sent: Any) -> Explained:
    """Parse a rank's largest error (for `gather_values`).

    Raises:
        TypeError: a value has a wrong type.
        ValueError: the number of values is wrong.
    """
    name, error, rounding = sent
    if not isinstance(name, str):
        raise TypeError("expected a name")
    return Explained(True, name, float(error), float(rounding))
