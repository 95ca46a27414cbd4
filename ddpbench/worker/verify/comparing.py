"""Compare the gradients and parameters of a strategy's ranks with the results of a single process."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ddpbench.records import ComparedQuantity, Proof
from ddpbench.strategies import Replica
from ddpbench.strategies.base import CannotTrainError, parts_reason
from ddpbench.strategies.trees import copied
from ddpbench.worker.training.precision import PrecisionPolicy
from ddpbench.worker.training.training import all_equal, checksum
from ddpbench.worker.training.types import NumberTypes
from ddpbench.worker.verify.examination import Examination
from ddpbench.worker.verify.faults import Faults
from ddpbench.worker.verify.measured_rounding import rounding_of_changes
from ddpbench.worker.verify.one_process import ComparingRank, Drawn, OneProcess, seed_update
from ddpbench.worker.verify.tolerances import NARROW_CHANGE_TOLERANCE, TOLERANCES, Tolerances
from ddpbench.worker.verify.unproved import FailedChange, FailedGradients, Failures, without_rounding
from ddpbench.worker.verify.update_faults import UpdateFaults
from ddpbench.worker.verify.values import Tensors, are_finite, dense, norm, trained_names
from ddpbench.worker.verify.written import writes_sentence
from ddpbench.workloads import is_import_path

UNCHANGED = "no update changed a parameter: is the learning rate 0?"
ROUNDING = TOLERANCES[torch.float32]
"""Largest relative difference between updates that rounding alone causes, unless Adam amplifies the rounding."""
_NOT_FINITE = (
    "parameters are not finite after these updates in one process either: is the learning rate too large?"
)
_TOO_COARSE = (
    "gradients are sent in such a coarse type that the error of three updates such as Adam's may be as large as "
    "a missing update: only gradients are compared"
)
_OTHER_BITS = "the ranks' parameters differ, even if only by rounding: all ranks must end with the same bits"
"""Note for replicas that differ although nothing in the model explains the difference."""
_TRAINS_OTHERS = (
    "it trains different parameters on each rank, so their gradients cannot be averaged: have model() set "
    "requires_grad alike on all ranks"
)
LARGEST_DECIDED = 0.7
"""Largest fraction, by norm, of the updates' changes that rounding may decide. If rounding decides more, the remaining
changes prove too little. 0.7 is about half of the squared norm.
"""
_DECIDED = "in this type, rounding decides most of what updates change: float64 proves the case"
MOST_HALVINGS = 40
"""Largest number of times that an fp16 loss's scale is halved until gradients are finite."""
GATHERS = (
    "the loss exchanges values between ranks, so one process computes a different loss. Each rank's gradient is "
    "therefore computed with the same exchange, and the strategy's gradient is compared with their mean"
)
"""Note for a comparison that cannot use one process's loss as its reference."""


def not_compared(compared: ComparedQuantity, dtype: str, note: str) -> Proof:
    """Return a `Proof` that counts as passed although nothing was compared; `note` says why."""
    return Proof(compared=compared, dtype=dtype, error=0.0, tolerance=math.inf, passed=True, note=note)


class Comparer:
    """Makes one rank's comparisons in one number type and precision."""

    def __init__(
        self,
        prover: ComparingRank,
        numbers: NumberTypes,
        precision: PrecisionPolicy,
        shards: Sequence[Any],
        own_autocast: str = "",
        *,
        later: Sequence[Drawn] = (),
    ) -> None:
        """Set up the comparisons. `shards` has the batches of all ranks that train.

        `own_autocast` names the autocast type that the workload's own loss enters: bf16, fp16, or empty. `later` has
        one batch for each later step of the proof. If `later` is empty, these steps reuse the first batch.
        """
        self.prover, self.numbers, self.precision, self.shards = prover, numbers, precision, shards
        self.later = later
        self.training = prover.training
        name = numbers.name
        self.name = name if precision.name == "full" else f"{name}, {precision.name} autocast"
        if own_autocast:
            self.name = f"{name}, its own {own_autocast} autocast"
        self.one = OneProcess(prover, numbers, precision, shards)
        self.tolerances = Tolerances(numbers, precision, own_autocast)
        self.model = Examination(self.one, later)
        self.faults = Faults(self.one, self.tolerances, self.model)
        self.updates = UpdateFaults(self.one)
        self.takes_turns = False
        """True if the strategy's replicas in one process run their forward passes one after another, each with its own
        shard's seed.
        """
        self.first_loss: Any = None
        """Loss that the replica's first step returned, unchecked."""
        self._has_stepped = self._has_rounding = False
        self.failures = Failures(self.one, self.tolerances)
        """Failed comparisons, which may be unproved."""
        self._lost: Callable[[], str] = str

    def allow_for(self, replica: Replica) -> None:
        """Widen the tolerances if `replica` rounds what it sends. Begin to watch what the replica's steps leave out."""
        self._lost = replica.watch_steps()
        if replica.unit_roundoff:
            self.tolerances.widen(replica.unit_roundoff)

    def held(self, compared: ComparedQuantity, own: Tensors, expected: Tensors) -> Proof:
        """Compare `own` with `expected`, and return the result as a proof.

        The note of a failed proof names the parameter with the largest error.
        """
        error, name = self.worst(own, expected)
        proof = self.proof(compared, error)
        self.failures.gradients[compared] = FailedGradients(own, expected)
        if proof.passed or error <= proof.tolerance:
            return proof
        return replace(proof, note=f"on rank {self.prover.rank} the most in {name}")

    def worst(self, own: Tensors, expected: Tensors) -> tuple[float, str]:
        """Return the largest relative error of any gradient of `own` on this rank, and its parameter's name.

        If rounding may explain errors above the tolerance, the error of rounding is measured once, and allowed from
        then on. As this could hide wrong gradients, gradients are then compared in float64 too. All ranks must call
        this method together.
        """
        found = self.tolerances.worst(own, expected)
        most = self.prover.agreed(found[0])
        doubtful = self.tolerances.gradient < most <= self.tolerances.most_rounding
        if doubtful and not self._has_rounding and self.prover.proves_double and not self.numbers.is_double:
            self._has_rounding = True
            if not self.faults.of_gradients():
                self.tolerances.allow_rounding(self.failures.rounding_of_average())
                return self.tolerances.worst(own, expected)
        return found

    def change(
        self,
        compared: ComparedQuantity,
        before: Tensors,
        own: Tensors,
        expected: Tensors,
        *,
        unchanged: str = UNCHANGED,
        train: Callable[[torch.nn.Module], Tensors] | None = None,
        fault: Callable[[Proof], str] | None = None,
    ) -> Proof:
        """Compare how updates changed this rank's parameters with how they changed those of one process.

        This rank's parameters changed from `before` to `own`, one process's from `before` to `expected`. The proof has
        the note `unchanged` if none changed. `train` repeats one process's training from its initial state. It serves
        to measure rounding, if float64 has proved this comparison and the error is below `NARROW_CHANGE_TOLERANCE`;
        what rounding explains is left out. `fault` returns why comparing changes is meaningless, or `""`; by default it
        examines the model's gradients and updates.
        """
        allowed = self.tolerances.change
        rounds = allowed is None or self.tolerances.rounds
        if rounds and not self.prover.proves_double and compared == "update, same gradients":
            allowed, rounds = NARROW_CHANGE_TOLERANCE, False
        if allowed is None or rounds:
            note = "updates change parameters by less than this type or precision resolves"
            note += ": float64 proves it" if self.prover.proves_double else ""
            return not_compared(compared, self.name, note)
        own = {name: value for name, value in own.items() if name not in self.model.writes}
        self.failures.forget(compared, expected)
        note = self.faults.of_exchange() or self._cannot_compare(before, own, expected)
        if compared == "parameters, same samples":
            allowed = self.tolerances.change_after(allowed)
            note = note or (_TOO_COARSE if math.isinf(allowed) else "")
        if note:
            return not_compared(compared, self.name, note)
        error, changed = _error_of_change(before, own, expected)
        if not self.prover.agreed(float(changed)):
            return not_compared(compared, self.name, unchanged)
        proof = self.proof(compared, error if math.isfinite(error) else math.inf, allowed)
        if self.numbers.is_double and proof.passed:
            self.prover.proved_in_double.add(compared)
        doubtful = allowed < proof.error <= NARROW_CHANGE_TOLERANCE
        in_double = compared in self.prover.proved_in_double and not self.numbers.is_double
        fault = fault or self._fault_of_change
        if train and doubtful and in_double and not fault(proof):
            _, rounding = rounding_of_changes(self.one, train)
            error, decided = without_rounding(before, own, expected, rounding)
            if self.prover.agreed(float(decided > LARGEST_DECIDED)) == 0:
                proof = self.proof(compared, error, allowed)
            else:
                return not_compared(compared, self.name, _DECIDED)
        if not proof.passed and train:
            self.failures.add(compared, FailedChange(before, own, expected, allowed, train))
        if self.model.writes and proof.passed:
            return replace(
                proof, note=f"{writes_sentence(self.model.writes)}; these are left out of this comparison"
            )
        return proof

    def _fault_of_change(self, proof: Proof) -> str:
        """Return why comparing changes is meaningless; `""` if it is meaningful. All ranks must call this together."""
        return self.faults.of_gradients() or self.updates.found() or self.updates.of_rounding(proof.error)

    def _cannot_compare(self, before: Tensors, own: Tensors, expected: Tensors) -> str:
        """Return why some rank's changes cannot be compared; `""` if they can. All ranks must call this together."""
        agreed = self.prover.agreed
        if agreed(float(bool(self.model.writes) and not own)):
            return writes_sentence(self.model.writes)
        frozen = sorted((own.keys() | before.keys()) - expected.keys())
        if agreed(float(bool(frozen) and before.keys() >= set(frozen))):
            shown = f" ({frozen[0].removeprefix('network.')}, ...)" if frozen else ""
            thaws = agreed(float(not self.faults.trains_first(frozen))) > 0
            return (
                f"the model {'thaws' if thaws else 'freezes'} parameters{shown} after some forwards, and one "
                "process makes more forwards than a rank"
            )
        if agreed(float(not are_finite(expected))) and agreed(float(not are_finite(own))):
            ranks = ", ".join(map(str, self.model.spoiled()))
            return (
                f"{_NOT_FINITE} Samples of rank {ranks} hold NaN or infinite values" if ranks else _NOT_FINITE
            )
        return ""

    def check_lost(self, proof: Proof) -> None:
        """After a failed comparison, refuse a model whose steps the strategy cannot reproduce fully.

        All ranks must call this method together.

        Raises:
            CannotTrainError: the strategy leaves out part of the model's steps, or it splits an update among ranks
                although the optimizer needs all parameters at once.
        """
        lost = "" if proof.passed else self._lost()
        if not proof.passed and self.prover.agreed(float(bool(lost))):
            raise CannotTrainError(lost or "see the other ranks")
        strategy, changed = self.training.strategy, proof.compared.startswith(("update", "parameters"))
        if proof.passed or not self.updates.divided or not changed:
            return
        together = self.updates.computed_together()
        if self.prover.agreed(float(bool(together))):
            raise CannotTrainError(parts_reason(strategy.name, together or "its optimizer"))

    def explained(self, proof: Proof) -> Proof:
        """Return `proof`, or one marked as not compared if a fault of the model explains the failure.

        A failure stays if the model makes replicas end up different, with a note about the model. All ranks must call
        this method together.

        Raises:
            CannotTrainError: the strategy leaves out part of the model's steps.
        """
        if proof.passed:
            return self._unless_by_chance(proof)
        if proof.compared == "every parameter has a rank":
            return proof
        self.check_lost(proof)
        if infinite := self.model.fault_of_infinite():
            fault = infinite
        elif others := self.faults.of_other_trained():
            fault = others
        elif proof.compared == "initial state":
            fault = self.faults.of_initial_state()
        elif proof.compared == "final replicas":
            fault = self.faults.of_writes() or self.updates.found(exactly=True)
        else:
            fault = self.faults.of_gradients()
            if not fault and proof.compared.startswith(("update", "parameters")):
                fault = self.updates.found() or self.updates.of_rounding(proof.error)
            if fault and fault != self.updates.by_rank():
                return not_compared(proof.compared, self.name, fault)
        if not fault:
            if proof.compared == "final replicas":
                return replace(proof, note=_OTHER_BITS)
            note = self.failures.note_on_rounding(proof)
            return not_compared(proof.compared, self.name, note) if note else proof
        self.prover.blame(fault)
        return replace(proof, note=fault)

    def _unless_by_chance(self, proof: Proof) -> Proof:
        """Return a passed proof as not compared if a fault of the model may be why it passed.

        All ranks must call this method together.
        """
        decisive = proof.compared.startswith(("gradients", "sums", "update", "parameters"))
        if proof.was_made and decisive and self.prover.unrepeatable:
            return not_compared(proof.compared, self.name, self.prover.unrepeatable)
        changes = proof.was_made and proof.compared.startswith(("update", "parameters"))
        if not changes or proof.error <= ROUNDING or not is_import_path(self.training.case.workload):
            return proof
        fault = self._fault_of_change(proof)
        if not fault or fault == self.updates.by_rank():
            return proof
        return not_compared(proof.compared, self.name, fault)

    def step(self, replica: Replica, batch: Any) -> None:
        """Have this rank's replica compute and aggregate the gradients of a batch; store the loss of the first call."""
        loss = replica.gradients_of(*copied(batch))
        if not self._has_stepped:
            self._has_stepped, self.first_loss = True, loss

    def update_replica(self, replica: Replica) -> None:
        """Update this rank's replica, with random draws seeded by rank."""
        seed_update(self.training, self.prover.rank)
        self.precision.update(replica)

    def unless_by_rank(self, proof: Proof, reference: torch.nn.Module) -> Proof:
        """Return `proof`. A passed proof without a note becomes a failure if updates differ between ranks.

        If updates differ, each rank was compared with a different reference. All ranks must call this method together.
        """
        if (
            not proof.passed
            or proof.note
            or all_equal(checksum(reference), self.prover.control, self.prover.processes)
        ):
            return proof
        fault = self.updates.found()
        is_by_rank = bool(fault) and fault == self.updates.by_rank()
        return self.proof(proof.compared, math.inf, proof.tolerance) if is_by_rank else proof

    def own_gradients(self, replica: Replica) -> Tensors:
        """Return the gradients that the strategy aggregated, without the loss's scale."""
        found = replica.own_gradients()
        return {name: self.precision.true_gradient(dense(grad)) for name, grad in found.items()}

    def proof(self, compared: ComparedQuantity, error: float, tolerance: float | None = None) -> Proof:
        """Return a proof with the largest of all ranks' errors; every rank returns the same proof.

        `tolerance` defaults to the allowed error of gradients. All ranks must call this method together.
        """
        worst = self.prover.agreed(error)
        allowed = self.tolerances.gradient if tolerance is None else tolerance
        return Proof(
            compared=compared, dtype=self.name, error=worst, tolerance=allowed, passed=worst <= allowed
        )


def gap(comparer: Comparer, own: Tensors, expected: Tensors) -> float:
    """Return the largest relative error of any gradient of `own` on any rank.

    All ranks must call this function together.
    """
    return comparer.prover.agreed(comparer.worst(own, expected)[0])


def settle_scale(comparer: Comparer, model: torch.nn.Module, batch: Any) -> None:
    """Halve an fp16 loss's scale until this batch's gradients are finite on all ranks, as training would do."""
    prover, precision = comparer.prover, comparer.precision
    if precision.name != "fp16":
        return
    for _ in range(MOST_HALVINGS):
        infinite = not are_finite(prover.gradient(comparer.one.copied(model), batch, precision))
        if not prover.agreed(float(infinite)) or not precision.lower_scale():
            return


def _error_of_change(before: Tensors, own: Tensors, expected: Tensors) -> tuple[float, bool]:
    """Return the relative error of a change, and whether any parameter changed or should have.

    Infinite if only `own` changed, or has a parameter that `expected` lacks.
    """
    if not own.keys() <= expected.keys():
        return math.inf, True
    gaps = norm([own[name] - expected[name] for name in own])
    # Parameters that a step made trainable are not in `before`.
    scale = norm([expected[name] - before[name] for name in own if name in before])
    changed = bool(scale) or bool(gaps)
    return (float(gaps / scale) if changed else 0.0), changed


def check_trained(prover: ComparingRank, model: torch.nn.Module) -> None:
    """Refuse a model if ranks train different parameters, because their gradients could not be averaged.

    Raises:
        CannotTrainError: the names of trained parameters differ between ranks; raised on all ranks.
    """
    names = "\n".join(sorted(trained_names(model)))
    digest = hashlib.sha256(names.encode()).hexdigest()
    if not all_equal(digest, prover.control, prover.processes):
        raise CannotTrainError(_TRAINS_OTHERS)
