"""Compute in a single process what a strategy's ranks compute together, as the reference of a comparison."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ddpbench.measure.blocks import Control
from ddpbench.strategies.base import hooked_parameters
from ddpbench.strategies.trees import cast, chunk, copied
from ddpbench.worker.training.exchanges import alone, noticing_exchanges
from ddpbench.worker.training.precision import PrecisionPolicy
from ddpbench.worker.training.randomness import random_state, seed_all, set_random_state
from ddpbench.worker.training.training import Training
from ddpbench.worker.training.types import NumberTypes
from ddpbench.worker.verify.perturbed import perturb
from ddpbench.worker.verify.values import Tensors, as_trained, mean, share_memory, trained
from ddpbench.workloads import is_import_path


class ComparingRank(Protocol):
    """Interface of the rank that makes a comparison; `ddpbench.worker.verify.proof.Prover` implements it."""

    training: Training
    control: Control
    rank: int
    processes: int
    group: Any
    gathers: bool
    """True if the loss communicates between ranks, so that one process cannot compute all ranks' losses by itself."""
    proves_double: bool
    """True if the case is also compared in float64."""
    proved_in_double: set[str]
    """Comparisons of changes that float64 has passed."""
    unrepeatable: str
    """Why repeated steps of the user's class have different results; empty if no difference was seen."""
    packed: bool
    """True if samples are packed into rows of a batch, so that batches cannot be joined or split."""
    sparse: set[str]
    """The parameters whose gradient has been sparse in one process, by name."""

    def on_step(self) -> None: ...
    def blame(self, fault: str) -> None: ...
    def gradient(
        self,
        model: torch.nn.Module,
        shard: Any,
        precision: PrecisionPolicy,
        parts: int = 1,
        factor: float = 1.0,
    ) -> Tensors: ...
    def agreed(self, value: float) -> float: ...
    def all_agreed(self, values: Sequence[float]) -> list[float]: ...
    def average(self, values: Tensors) -> Tensors: ...


@dataclass(frozen=True, slots=True)
class Drawn:
    """The batch of one step, as known on one rank."""

    own: tuple[Any, Any]
    """This rank's inputs and targets."""
    shards: Sequence[Any]
    """Inputs and targets of every rank that trains."""

    def cast(self, dtype: torch.dtype | None) -> Drawn:
        """Return the batch with its tensors cast to `dtype`; unchanged if `dtype` is None."""
        return Drawn(cast(self.own, dtype), [cast(shard, dtype) for shard in self.shards])


def seed_update(training: Training, rank: int) -> None:
    """Seed the random generators for `rank`'s update."""
    seed_all(training.case.seed + 1 + training.case.world_size + rank)


class OneProcess:
    """Computes models, gradients, losses and updates in a single process, in one number type and precision."""

    def __init__(
        self, prover: ComparingRank, numbers: NumberTypes, precision: PrecisionPolicy, shards: Sequence[Any]
    ) -> None:
        self.prover, self.numbers, self.precision, self.shards = prover, numbers, precision, shards
        self.training = prover.training
        self.update_has_exchanged = False
        """True if an update on this rank has communicated with other ranks."""
        self.perturbation: int | None = None
        """Seed of the changes that `fresh` makes to the last digits of parameters; None for no changes."""
        self.factor = 1.0
        """Factor by which losses are multiplied, and gradients divided, to change their rounding."""

    def fresh(self) -> torch.nn.Module:
        """Return a new model in its initial state, in the comparison's number types and precision."""
        model = self.training.fresh_model(self.numbers.cast, self.precision)
        if self.perturbation is not None:
            perturb(model, self.perturbation)
        return model

    def copied(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a copy of a model that trains exactly as the model does.

        Where `copy.deepcopy` fails or loses hooks, shared memory or parts of TorchScript modules, a fresh model is
        loaded with the model's state.
        """
        scripted = any(isinstance(each, torch.jit.ScriptModule) for each in model.modules())
        if not scripted and not hooked_parameters(model) and not share_memory(model):
            try:
                return copy.deepcopy(model)
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except (
                NotImplementedError
            ):  # raised for a tensor without a storage, such as a sparse matrix of rows
                pass
            except RuntimeError as error:
                if "deepcopy protocol" not in str(error):
                    raise
            except Exception:  # an object that cannot be copied may raise anything
                pass
        drawn = random_state()
        made = self.fresh()
        set_random_state(drawn)
        made.load_state_dict(model.state_dict())
        return made

    @property
    def own_shard(self) -> int:
        """Return the index of this rank's shard; 0 for a parameter server and for a pipeline's ranks."""
        return max(self.prover.rank - (self.training.case.world_size - len(self.shards)), 0)

    def seed(self, shard: int) -> None:
        """Seed the random generators for a step on this shard, as its rank does."""
        seed_all(self.training.case.seed + 1 + shard)

    def gradient(self, model: torch.nn.Module, shard: int, shards: Sequence[Any] | None = None) -> Tensors:
        """Return one process's gradient over shard number `shard` of `shards` (default: the first batch's shards).

        The shard is split into the same parts as on a rank, because dropout, BatchNorm or a mean over words depend on
        that.
        """
        self.seed(shard)
        batch = (self.shards if shards is None else shards)[shard]
        parts = self.training.strategy.accumulated(self.training.options)
        return self.prover.gradient(model, batch, self.precision, parts, self.factor)

    def seeded_gradient(self, model: torch.nn.Module) -> Tensors:
        """Return the model's gradient over the first shard, computed with that shard's seed."""
        self.seed(0)
        return self.prover.gradient(model, self.shards[0], self.precision)

    def average(self, model: torch.nn.Module) -> Tensors:
        """Return the mean of a model's gradients over all shards, each computed with its shard's seed.

        If the loss communicates between ranks, each rank computes its own shard's gradient, and the mean is over ranks.
        """
        if self.prover.gathers:
            return self.prover.average(self.gradient(model, self.prover.rank))
        return mean(self.gradient(model, number) for number in range(len(self.shards)))

    def average_afresh(self) -> Tensors:
        """Like `average`, but compute each shard's gradient with a new model that no forward pass has changed."""
        if self.prover.gathers:
            return self.average(self.fresh())
        # Each fresh model is made before its shard's seed is set.
        return mean(self.gradient(self.fresh(), number) for number in range(len(self.shards)))

    def average_reached(
        self, model: torch.nn.Module, shards: Sequence[Any], without: Set[str], *, apart: bool = False
    ) -> Tensors:
        """Return the mean of a model's gradients over `shards`, except those of parameters that an update leaves out.

        `without` has the names of parameters that this rank's update left out. Such a parameter is left out of the
        result if no shard gives it a gradient. If `apart`, each rank computes only its own shard's gradient, and the
        mean is over ranks.
        """
        apart = apart or self.prover.gathers
        own = (self.prover.rank,) if apart else range(len(shards))
        found, reached = self.mean_reached([(model, number) for number in own], shards)
        if apart:
            found = self.prover.average(found)
        return {name: value for name, value in found.items() if name in reached or name not in without}

    def mean_reached(
        self, trained_by: Iterable[tuple[torch.nn.Module, int]], shards: Sequence[Any] | None = None
    ) -> tuple[Tensors, set[str]]:
        """Return the mean of several models' gradients, and the names of the parameters that got a gradient.

        `trained_by` pairs each model with the number of its shard.
        """
        reached: set[str] = set()

        def noted() -> Iterator[Tensors]:
            for model, number in trained_by:
                yield self.gradient(model, number, shards)
                reached.update(name for name, each in model.named_parameters() if each.grad is not None)

        return mean(noted()), reached

    def loss(self, model: torch.nn.Module, shard: int) -> float:
        """Return one process's loss over a shard of the first batch, in parts if the strategy accumulates gradients."""
        self.seed(shard)
        return self.loss_of(
            model, self.shards[shard], self.training.strategy.accumulated(self.training.options)
        )

    def loss_of(self, model: torch.nn.Module, batch: Any, parts: int = 1) -> float:
        """Return one process's loss over a batch, as the mean of the losses of `parts` pieces."""
        own = copied(batch)
        pieces = chunk(own, parts) if parts > 1 else [own]
        loss_of = self.training.workload.loss
        with torch.enable_grad():  # some models need it
            return sum(float(loss_of(model(inputs), targets)) for inputs, targets in pieces) / len(pieces)

    def update(
        self,
        model: torch.nn.Module,
        gradient: Tensors,
        optimizer: torch.optim.Optimizer,
        rank: int | None = None,
    ) -> None:
        """Update `model` from these gradients with `optimizer`; parameters without a gradient are left out.

        Random draws are seeded as in the update of `rank` (default: this rank).
        """
        for name, parameter in model.named_parameters():
            sparse = name in self.prover.sparse
            parameter.grad = as_trained(gradient[name], sparse=sparse) if name in gradient else None
        seed_update(self.training, self.prover.rank if rank is None else rank)
        with noticing_exchanges() as seen:
            optimizer.step()
        self.update_has_exchanged |= seen.found
        optimizer.zero_grad(set_to_none=True)

    def updated(self, gradient: Tensors, *, made_alone: bool | None = None, says_so: bool = False) -> Tensors:
        """Return a fresh model's parameters after a few updates from this gradient.

        All ranks update together if `made_alone` is None. Each rank updates alone if it is False, and also makes its
        optimizer alone if it is True. Then `says_so` sets `RANK` and `WORLD_SIZE` as for a single process.

        Raises:
            RuntimeError: updates communicate in a group other than the default one, so no rank can make them alone.
        """
        model, device = self.fresh(), self.training.device
        with alone(device, says_so=says_so) if made_alone else nullcontext():
            optimizer = self.training.make_optimizer(model.parameters())
        with nullcontext() if made_alone is None else alone(device, says_so=says_so):
            for _ in range(3):  # a schedule may start with a learning rate of zero
                self.call_loss(model)
                with noticing_exchanges() as seen:
                    self.update(model, gradient, optimizer)
                if made_alone is not None and seen.found:
                    raise RuntimeError(
                        "the update communicates over a process group other than the default one"
                    )
        return trained(model)

    def call_loss(self, model: torch.nn.Module, shard: int = 0) -> None:
        """Compute a shard's loss and gradients if the class is a user's.

        The class's next update may depend on this call.
        """
        if is_import_path(self.training.case.workload):
            self.gradient(model, shard)


class OwnReference:
    """A reference model for this rank, whose user's object gets the same calls before each update.

    An update may depend on what `loss` stored in the object, such as a count of calls.
    """

    def __init__(self, one: OneProcess, model: torch.nn.Module) -> None:
        """Store `model`, which is in its initial state, or a copy of it if the class is a user's."""
        self._one = one
        self.model = one.copied(model) if is_import_path(one.training.case.workload) else model
        self._optimizer: torch.optim.Optimizer | None = None

    def update(self, gradient: Tensors) -> None:
        """Compute the losses of this rank's step, but update the model from `gradient`.

        The losses' own gradients are not used.
        """
        one = self._one
        apart = one.prover.processes > 1 and not one.training.strategy.whole_batches
        for shard in (one.own_shard,) if apart else range(len(one.shards)):
            one.call_loss(self.model, shard)
        self._step(gradient)

    def after(self, batches: Sequence[Sequence[Any]], left_out: Sequence[Set[str]]) -> torch.nn.Module:
        """Return the model after one further step per batch in `batches`.

        Each rank computes the gradients of one shard, and the gradients are averaged over ranks. `left_out` has, for
        each step, the names of the parameters that the replica's update left out. All ranks must call this method
        together.
        """
        for shards, without in zip(batches, left_out, strict=True):
            self._step(self._one.average_reached(self.model, shards, without, apart=True))
        return self.model

    def _step(self, gradient: Tensors) -> None:
        if self._optimizer is None:
            self._optimizer = self._one.training.make_optimizer(self.model.parameters())
        self._one.update(self.model, gradient, self._optimizer)
