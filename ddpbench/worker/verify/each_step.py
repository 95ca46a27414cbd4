"""Compare a strategy's gradients with gradients computed without the strategy, in each of a proof's first steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ddpbench.records import Proof
from ddpbench.strategies import TABLE as SHIPPED
from ddpbench.strategies import Replica
from ddpbench.user_files import is_import_path
from ddpbench.worker.training.training import Training
from ddpbench.worker.verify.comparing import Comparer
from ddpbench.worker.verify.rounding import (
    OF_ROUNDING,
    OF_SIZE,
    Deviation,
    Sent,
    deviations,
    real,
    roundoff_of,
)
from ddpbench.worker.verify.values import Tensors, norm

VANISHED = 1e-3
"""Later gradients are compared only if their norm exceeds this fraction of the first step's norm. Smaller gradients may
consist of rounding errors.
"""


def is_own(training: Training) -> bool:
    """Return whether user code averages the gradients: a strategy, a hook, or an algorithm made of collectives."""
    return training.case.strategy not in SHIPPED or is_import_path(training.case.algorithm)


class EachStep:
    """Compares the gradients of a user's strategy in each of its first steps.

    The strategy must return the average of all ranks' gradients, computed from its own parameters. This finds hooks
    that go wrong from their second call on, even if rounding forbids a comparison of parameters.
    """

    def __init__(self, comparer: Comparer, replica: Replica, model: torch.nn.Module) -> None:
        """Copy `model`, which is in the replica's initial state; the copy computes the expected gradients."""
        self._comparer, self._replica = comparer, replica
        strategy, prover = comparer.training.strategy, comparer.prover
        apart = len(comparer.shards) == prover.processes and not (
            strategy.whole_batches or strategy.one_process
        )
        self.compares = is_own(comparer.training) and apart and not strategy.framework
        self._model = comparer.one.copied(model) if self.compares else model
        self._own: Tensors = {}
        self._first = self._later = 0.0
        self._most = ""
        """Name of the parameter with the largest error in later steps."""
        self._coarsest = 0.0
        """Unit roundoff that would cause an error as large as that of parameter `_most`; 0 if nothing is rounded."""
        self._steps = 0
        self._compared = False
        self._worst: dict[str, Deviation] = {}
        tolerances = comparer.tolerances
        self._sent = Sent(
            ranks=prover.processes,
            roundoff=replica.unit_roundoff,
            floor=tolerances.unwidened,
            coarse=math.isinf(tolerances.change_after(0.0)),
        )

    def expect(self, shards: Sequence[Any]) -> None:
        """Compute the gradient of this rank's shard from the replica's current parameters, for `compare`."""
        self._own = {}
        if not self.compares:
            return
        if self._steps:
            self.compares = self._follow()
        self._steps += 1
        if self.compares:
            self._own = dict(self._comparer.one.gradient(self._model, self._comparer.one.own_shard, shards))

    def _follow(self) -> bool:
        replica, model = self._replica, self._model
        parameters, buffers = replica.own_parameters(), dict(replica.job.model.named_buffers())
        held = {name: each for name, each in model.named_parameters() if each.requires_grad}
        fits = parameters.keys() == held.keys() and all(
            parameters[name].shape == each.shape for name, each in held.items()
        )
        if self._comparer.prover.agreed(float(not fits)):
            return False
        with torch.no_grad():
            for name, parameter in held.items():
                parameter.copy_(parameters[name])
            for name, buffer in model.named_buffers():
                if name in buffers and buffers[name].shape == buffer.shape:
                    buffer.copy_(buffers[name])
        return True

    def compare(self, result: Tensors) -> None:
        """Compare this step's gradients, `result`, with the mean over ranks of the gradients from `expect`.

        All ranks must call this method together.
        """
        comparer, prover = self._comparer, self._comparer.prover
        if not self._own or prover.agreed(float(result.keys() != self._own.keys())):
            return
        exact, most = prover.average(self._own), ""
        size = prover.agreed(float(norm(list(exact.values()))))
        if not math.isfinite(size) or size <= VANISHED * self._first:
            return
        self._first = self._first or size
        if self._steps > 1:
            self._compared = True
            error, name = comparer.worst(result, exact)
            if error > self._later:
                self._later, self._most, most = error, name, name
        if self._sent.roundoff:
            squares = prover.average({name: real(value) ** 2 for name, value in self._own.items()})
            if most:
                self._coarsest = roundoff_of(self._sent, self._later, exact[most], squares[most])
            for each in deviations(self._sent, result, self._own, exact, squares):
                before = self._worst.get(each.compared)
                if before is None or each.share > before.share:
                    self._worst[each.compared] = each

    def proofs(self) -> Iterator[Proof]:
        """Yield the proofs that cover all steps compared so far; every rank yields the same proofs."""
        comparer, prover = self._comparer, self._comparer.prover
        if self._compared:
            proof = comparer.proof("gradients, later steps", self._later)
            if not proof.passed and self._later > proof.tolerance:
                note = f"on rank {prover.rank} the most in {self._most}"
                proof = replace(proof, note=f"{note}{self._as_if(self._coarsest)}")
            yield proof
        for compared in OF_ROUNDING:
            own = self._worst.get(compared)
            share = prover.agreed(own.share if own else 0.0)
            if share > 0:
                is_worst = own is not None and own.share == share
                values = [own.error, own.allowed] if own and is_worst else [0.0, 0.0]
                error, allowed = prover.all_agreed(values)
                proof, floor = comparer.proof(compared, error, allowed), self._sent.floor
                if not proof.passed and compared == OF_SIZE:
                    coarse = self._sent.roundoff * (error - floor) / (allowed - floor)
                    proof = replace(proof, note=self._as_if(coarse).removeprefix(", "))
                yield proof

    def _as_if(self, coarse: float) -> str:
        stated = self._sent.roundoff
        if not stated < coarse < math.inf:
            return ""
        return f", as if unit_roundoff were {coarse:.2g} instead of {stated:.3g}"
