"""Find out why an update cannot be compared with an update in one process.

Updates may draw random numbers, keep state, differ by rank, be rounded, or combine all parameters.
"""

from __future__ import annotations

import math

import torch

from ddpbench.strategies import TABLE as SHIPPED
from ddpbench.worker.training.randomness import random_state, set_random_state
from ddpbench.worker.training.training import all_equal, checksum
from ddpbench.worker.verify.faults import UNSEEDED, by_rank
from ddpbench.worker.verify.one_process import OneProcess
from ddpbench.worker.verify.optimizers import computed_together, draws, narrower_type
from ddpbench.worker.verify.outside_state import OutsideState, outside_words, owner_of
from ddpbench.worker.verify.tolerances import CHANGE_TOLERANCES, NARROW_CHANGE_TOLERANCE
from ddpbench.worker.verify.values import Tensors, norm, trained
from ddpbench.worker.verify.written import same
from ddpbench.workloads import is_import_path

DRAWS_IN_UPDATE = (
    "the update draws random numbers that differ between ranks: to keep replicas equal, draw them from a "
    "generator that is seeded alike on all ranks"
)
"""Why ranks that make the same update end with different parameters."""
DRAWS_IN_PARTS = (
    "the update draws random numbers, and each rank draws them for its own part of the parameters: not "
    "comparable with one process"
)
"""Why ranks that each update a part of the parameters end with other values than one process."""

OF_ITS_SAMPLES = (
    "the class makes different updates on each rank from the same gradients: they depend on values that loss() "
    "stored from the rank's samples, which no strategy averages"
)
"""Why updates differ by rank although the code does not read the rank."""
OF_REPLICA = (
    "the class's update depends on values that loss() stored from samples, but replicas in threads compute their "
    "losses in any order: not comparable with one process"
)
"""Why replicas that share an object may update differently each time."""


class UpdateFaults:
    """Finds faults of a model's updates. Each is searched for once; all ranks must call the methods together."""

    def __init__(self, one: OneProcess) -> None:
        self._one, self._prover = one, one.prover
        self._found: str | None = None
        self._gap = 0.0
        self._gap_by_samples = 0.0
        self._rounds: str | None = None
        self._together: str | None = None

    def found(self, *, exactly: bool = False) -> str:
        """Return why updates cannot be compared; `""` if one process can repeat them.

        Ranks' updates may differ by as much as a comparison allows, or not at all if `exactly`. The result is computed
        once. All ranks must call this method together.
        """
        if self._found is None:
            self._found = self._repeated()
        return self._found or self.by_rank(exactly=exactly)

    def by_rank(self, *, exactly: bool = False) -> str:
        """Return a sentence if `found` saw that updates differ between ranks; otherwise `""`.

        `exactly` is as in `found`.
        """
        allowed = CHANGE_TOLERANCES.get(self._one.numbers.narrowest, NARROW_CHANGE_TOLERANCE)
        allowed = 0.0 if exactly else allowed
        if self._gap > allowed:
            return f"the update {by_rank('parameters')}"
        several = self._prover.processes > 1
        return OF_ITS_SAMPLES if several and self._gap_by_samples > allowed else ""

    def _repeated(self) -> str:
        """Say that repeated updates differ or depend on the seed. Also measures the difference by rank."""
        gradient = self._prover.average(self._one.seeded_gradient(self._one.fresh()))
        before = trained(self._one.fresh())
        outside = OutsideState(owner_of(self._one.training, self._one.fresh()))
        made, digests = [], []
        for rank in (0, 0, 1):
            model = self._made_by(rank, gradient)
            made.append(trained(model))
            digests.append(checksum(model))
        differs = [any(not same(each[name], made[0][name]) for name in each) for each in made[1:]]
        again, elsewhere = (bool(self._prover.agreed(float(each))) for each in differs)
        if again:
            why, changed = UNSEEDED, outside.changed()
            if self._prover.agreed(float(bool(changed))):
                outside.restore()
                fourth = trained(self._made_by(0, gradient))
                if not self._prover.agreed(
                    float(any(not same(fourth[name], made[0][name]) for name in fourth))
                ):
                    why = outside_words(changed)
            return f"the update gives different parameters from the same gradients and seeds: it {why}"
        if not all_equal(digests[0], self._prover.control, self._prover.processes):
            self._gap = self._apart(made[0], self._prover.average(made[0]), before)
        elif self._keeps_apart():
            other = trained(self._made_by(0, gradient, self._one.own_shard or 1))
            self._gap_by_samples = self._apart(made[0], other, before)
        if self._gap_by_samples and self._prover.processes == 1:
            return OF_REPLICA
        if self.in_parts() and (elsewhere or self._draw()):
            return DRAWS_IN_PARTS
        return DRAWS_IN_UPDATE if elsewhere else ""

    def waits(self, model: torch.nn.Module) -> bool:
        """Return whether a user's update of `model` would deadlock, as ranks update parts of it differently.

        For example, only one rank may compute the norm of all gradients. All ranks must call this method together.
        """
        acts = callable(getattr(owner_of(self._one.training, model), "before_update", None))
        if not acts or self._one.training.strategy.whole_state or not self.in_parts():
            return False
        return self.found() == f"the update {by_rank('parameters')}"

    def _keeps_apart(self) -> bool:
        training = self._one.training
        several = len(self._one.shards) > 1 and not training.strategy.whole_batches
        return several and is_import_path(training.case.workload)

    def _apart(self, one: Tensors, other: Tensors, before: Tensors) -> float:
        """Return |`one` - `other`| / |`one` - `before`|, the largest of any rank.

        Parameters that only one set has are left out. Infinite if `one` equals `before` but not `other`.
        """
        gap, whole = (
            float(norm([one[name] - each[name] for name in each if name in one])) for each in (other, before)
        )
        return self._prover.agreed(gap / whole if whole else math.inf) if gap else self._prover.agreed(0.0)

    def _made_by(self, rank: int, gradient: Tensors, shard: int = 0) -> torch.nn.Module:
        model = self._one.fresh()
        optimizer = self._one.training.make_optimizer(model.parameters())
        for _ in range(3):  # a schedule may start with a learning rate of zero
            self._one.call_loss(model, shard)
            self._one.update(model, gradient, optimizer, rank)
        return model

    def in_parts(self) -> bool:
        """Return whether each rank updates only a part of the parameters."""
        strategy = self._one.training.strategy
        divides = strategy.sends_parameters or not strategy.replicas_equal or not strategy.whole_state
        return (
            self._prover.processes > 1
            and divides
            and strategy.promise(self._one.training.options) == "gradients"
        )

    def _after_loss(self) -> torch.nn.Module:
        model = self._one.fresh()
        if not self._prover.gathers and not self._one.training.workload.owns_step:
            self._one.call_loss(model)
        return model

    def _draw(self) -> bool:
        """Return whether an update draws random numbers on any rank, from any generator."""
        kept = random_state()
        drawn = draws(self._after_loss, self._one.training.make_optimizer)
        set_random_state(kept)
        return bool(self._prover.agreed(float(drawn)))

    def of_rounding(self, error: float) -> str:
        """Return a sentence if updates compute in a coarser number type than the parameters'; otherwise `""`.

        Updates are examined only if rounding can explain a relative error of `error`.
        """
        if error > NARROW_CHANGE_TOLERANCE:
            return ""
        if self._rounds is None:
            kept = random_state()
            narrow = narrower_type(self._after_loss, self._one.training.make_optimizer)
            set_random_state(kept)
            self._rounds = narrow if self._prover.agreed(float(bool(narrow))) else ""
        return (
            f"the update computes in {self._rounds}, which is coarser than the parameters: where each rank has a "
            "part of a parameter, its sums are rounded differently from one process's"
            if self._rounds
            else ""
        )

    @property
    def divided(self) -> bool:
        """Return whether ranks update separate parts of the parameters. Updates that need all parameters are then
        wrong.
        """
        training = self._one.training
        parts = training.case.strategy in SHIPPED and not training.strategy.whole_state and self.in_parts()
        return training.strategy.sends_parameters or parts

    def computed_together(self) -> str:
        """Return the class name of an optimizer in which a parameter's update depends on other parameters, or `""`."""
        if self._together is None:
            # A class that makes its steps itself has no loss from which to compute a gradient.
            owns_step = self._one.training.workload.owns_step
            gradient = None if owns_step else self._one.average(self._one.fresh())
            kept = random_state()
            self._together = computed_together(self._after_loss, self._one.training.make_optimizer, gradient)
            set_random_state(kept)
        return self._together
