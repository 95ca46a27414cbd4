"""Find behaviour of a model or its updates that makes a comparison with one process meaningless."""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Iterable

import torch

from ddpbench.records import UPDATE_EXCHANGES
from ddpbench.worker.verify.examination import Examination
from ddpbench.worker.verify.one_process import OneProcess
from ddpbench.worker.verify.outside_state import OutsideState, outside_words, owner_of
from ddpbench.worker.verify.tolerances import CHANGE_TOLERANCES, Tolerances
from ddpbench.worker.verify.values import Tensors, norm, trained, trained_names
from ddpbench.worker.verify.written import changed_since, writes_sentence
from ddpbench.workloads import is_import_path

UNSEEDED = (
    "draws from a random generator that no seed of torch, random or NumPy reaches, such as random.Random() or "
    "numpy.random.default_rng()"
)
"""Reason why a model's results are not repeatable, as the end of a sentence that begins with "it"."""
NOT_REPEATED = f"{UNSEEDED}, keeps state outside of the model, or has an operation that is not deterministic"
"""Like `UNSEEDED`, for results whose exact cause is unknown."""
_BY_RANK = (
    "model() returns different parameters on each rank, although all ranks are seeded alike: do not seed by rank "
    "in model(), or read a file that differs between ranks"
)
"""Why initial states differ between ranks although repeated calls of model() agree."""
_BY_RANK_LATER = (
    "gives different {what} on each rank from the same state, batch and seeds: it reads RANK, or something else "
    "that differs"
)
_TRAINS_MORE = (
    "the model trains different parameters after some steps, but strategies average those that it trains at the "
    "start: have model() set requires_grad once, and do not change it in training"
)
_EXCHANGED = (
    f"{UPDATE_EXCHANGES}, and one process makes a different update from the same gradients. Gradients are "
    "averaged before the update: summing them over ranks multiplies them by the number of ranks"
)


def by_rank(what: str) -> str:
    """Return the end of a sentence about a class, which says that its `what` differ between ranks, and why."""
    return _BY_RANK_LATER.format(what=what)


class Faults:
    """Finds faults of a model and its updates. Each is searched for once; all ranks must call the methods together."""

    def __init__(self, one: OneProcess, tolerances: Tolerances, examination: Examination) -> None:
        self._one, self._tolerances, self._examination = one, tolerances, examination
        self._prover = one.prover
        self._watched: list[tuple[torch.nn.Module, set[str]]] = []
        """Watched models, each with the names of the parameters that it trained at first."""
        self._of_gradients: str | None = None
        self._of_exchange: str | None = None

    def watch(self, model: torch.nn.Module) -> None:
        """Store which parameters the model trains now, because its steps may freeze or thaw parameters."""
        self._watched.append((model, trained_names(model)))

    def trains_first(self, names: Iterable[str]) -> bool:
        """Return whether each watched model trained all parameters of these names when the watch began."""
        return all(first.issuperset(names) for _, first in self._watched)

    def of_other_trained(self) -> str:
        """Return a sentence if steps of a watched model freeze parameters or make frozen ones trainable, or `""`.

        All ranks must call this method together.
        """
        found = any(trained_names(model) != names for model, names in self._watched)
        return _TRAINS_MORE if self._prover.agreed(float(found)) else ""

    def of_initial_state(self) -> str:
        """Return why the model's initial state differs between ranks; `""` if the user's class is not the cause."""
        first, second = self._one.fresh(), self._one.fresh()
        if not self._prover.agreed(float(bool(changed_since(trained(first), second)))):
            return _BY_RANK if is_import_path(self._one.training.case.workload) else ""
        return f"two calls of model() give different parameters under the same seeds: it {UNSEEDED}"

    def of_writes(self) -> str:
        """Return a sentence if the model's forward pass overwrites parameters; otherwise `""`.

        If the first examination found nothing, the model is examined again after a few updates. For example, a running
        average of parameters changes only after the parameters have changed. All ranks must call this method together.
        """
        found = self._examination.writes
        if not found:
            model = self._one.fresh()
            optimizer = self._one.training.make_optimizer(model.parameters())
            for _ in range(3):  # a schedule may start with a learning rate of zero
                self._one.update(model, self._one.seeded_gradient(model), optimizer)
            before = {name: each.detach().clone() for name, each in model.named_parameters()}
            self._one.seeded_gradient(model)
            found = changed_since(before, model)
        return writes_sentence(found) if self._prover.agreed(float(bool(found))) else ""

    def of_gradients(self) -> str:
        """Return why the model's gradients cannot be compared; `""` if one process can reproduce them.

        The result is computed once. All ranks must call this method together.
        """
        if self._of_gradients is None:
            # A fault found in one type holds in the next one too, even if its cause, such as a counter, has
            # ended since.
            self._of_gradients = self._prover.unrepeatable or self._found_of_gradients()
        return self._of_gradients

    def _found_of_gradients(self) -> str:
        first = self._one.fresh()
        values = {name: each.detach().clone() for name, each in first.named_parameters()}
        second, began = self._with_values(values), trained(first)
        outside = OutsideState(owner_of(self._one.training, first))
        gradients = [self._one.seeded_gradient(model) for model in (first, second)]
        changed = outside.changed()
        # State may depend on the samples, as in quantization's observers, so that repeating the same samples
        # would not change it.
        for number in range(1, len(self._one.shards)):
            self._one.gradient(first, number)
        gradients.append(self._one.seeded_gradient(first))
        gap, later = (
            self._prover.agreed(self._tolerances.error(gradients[0], other)) for other in gradients[1:]
        )
        if max(gap, later) <= self._tolerances.gradient:
            later = self._after_others(values)
        if gap > self._tolerances.gradient:
            why = NOT_REPEATED
            if self._prover.agreed(float(bool(changed))):
                outside.restore()
                again = self._one.seeded_gradient(self._with_values(values))
                if (
                    self._prover.agreed(self._tolerances.error(gradients[0], again))
                    <= self._tolerances.gradient
                ):
                    why = outside_words(changed)
            self._prover.unrepeatable = (
                f"the model gives different gradients from the same state, batch and seeds: it {why}"
            )
            return self._prover.unrepeatable
        if not self._prover.gathers and self._prover.processes > 1:
            others = self._prover.average(gradients[0])
            if self._prover.agreed(self._tolerances.error(gradients[0], others)) > self._tolerances.gradient:
                return f"the loss {by_rank('gradients')}"
        writes = self._examination.writes or changed_since(began, first)
        if self._prover.agreed(float(bool(writes))):
            return writes_sentence(writes)
        if later > self._tolerances.gradient:
            return (
                "the model keeps state from one forward to the next, so a later forward on the same batch gives "
                "different gradients"
            )
        return ""

    def _after_others(self, values: Tensors) -> float:
        """Return the error of a shard's gradient if another shard's is computed first; the largest of all ranks.

        Both orders are tried: a running maximum changes only if the larger value comes second.
        """
        found = 0.0
        if len(self._one.shards) > 1:
            number = self._one.own_shard or 1  # a different shard on each rank
            for first, second in ((0, number), (number, 0)):
                alone = self._one.gradient(self._with_values(values), second)
                model = self._with_values(values)
                self._one.gradient(model, first)
                found = max(found, self._tolerances.error(alone, self._one.gradient(model, second)))
        return self._prover.agreed(found)

    def _with_values(self, values: Tensors) -> torch.nn.Module:
        model = self._one.fresh()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(values[name])
        return model

    def update_exchanges(self) -> bool:
        """Return whether an update on any rank has communicated with other ranks.

        All ranks must call this method together.
        """
        return bool(self._prover.agreed(float(self._one.update_has_exchanged)))

    def of_exchange(self) -> str:
        """Return a sentence if updates communicate between ranks and one process cannot repeat them; otherwise `""`.

        The result is computed once. All ranks must call this method together.
        """
        if self._of_exchange is None and self.update_exchanges():
            self._of_exchange = self._found_of_exchange()
        return self._of_exchange or ""

    def _found_of_exchange(self) -> str:
        gradient, before = self._one.seeded_gradient(self._one.fresh()), trained(self._one.fresh())
        among = self._one.updated(gradient)
        moved = norm([value - before[name] for name, value in among.items()])
        allowed = CHANGE_TOLERANCES.get(self._one.numbers.narrowest, CHANGE_TOLERANCES[torch.float32])
        # `says_so` sets RANK and WORLD_SIZE to those of a single process. Code that multiplies a rate by the
        # number of ranks must see the real number; code that divides a sum by the number must see 1.
        for made_alone, says_so in itertools.product((False, True), repeat=2):
            gap = math.inf
            try:
                lone = self._one.updated(gradient, made_alone=made_alone, says_so=says_so)
                gaps = norm([lone[name] - value for name, value in among.items()])
                gap = float(gaps / moved) if gaps else 0.0
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except (Exception, SystemExit):  # code made for several ranks may fail in one
                traceback.print_exc()
            if self._prover.agreed(gap if math.isfinite(gap) else math.inf) <= allowed:
                return ""
        return _EXCHANGED
