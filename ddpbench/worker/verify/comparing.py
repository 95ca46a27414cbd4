"""Values of a strategy's ranks held against one process's: what counts as equal, and in which number type."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ddpbench.measure.blocks import Control
from ddpbench.records import UPDATE_EXCHANGES, Compared, Proof
from ddpbench.strategies import Replica
from ddpbench.strategies.base import CannotTrainError, hooked_parameters, parts_reason
from ddpbench.strategies.trees import cast, chunk, copied, tensors
from ddpbench.worker.training.exchanges import alone, noticing_exchanges
from ddpbench.worker.training.precision import Precision, roundoff_of
from ddpbench.worker.training.randomness import have_drawn, random_state, seed_all, set_random_state
from ddpbench.worker.training.training import Training, all_equal, checksum
from ddpbench.worker.training.types import Numbers
from ddpbench.worker.verify.optimizers import computed_together, draws, in_words
from ddpbench.worker.verify.written import changed_since, same, writes_sentence
from ddpbench.workloads import is_import_path

Tensors = dict[str, torch.Tensor]
"""Gradients or parameters by the model's names."""
TOLERANCES: dict[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Allowed error of a gradient. float64 leaves room for nothing but another order of addition; float32 for
that order too, over the few hundred thousand terms of a reduction."""
SMALL_GRADIENT = 1e-3
"""A parameter's error is relative to its own gradient's norm, or to this share of the whole gradient's norm
where that is larger: a gradient that is zero in exact arithmetic (attention's key bias) is all rounding."""
CHANGE_TOLERANCES: dict[torch.dtype, float] = {torch.float64: 1e-6, torch.float32: 0.05}
"""Allowed error of what updates changed, as one vector over all parameters. Adam divides a gradient by its own size, so
that in float32 one which is all rounding (attention's key bias) moves its parameters as far as any other, this way or
that; an update left out, or made of another rank's gradient, is wrong by a tenth and more."""
NARROW_CHANGE_TOLERANCE = 0.5
"""`CHANGE_TOLERANCES` in bfloat16 and float16, and under an autocast of the class's own, where float64 cannot be
computed: an update from the same gradients rounds alike on every rank, and one that was left out is wrong by 1."""
AUTOCAST_ROUNDOFFS = 16
"""Under autocast a gradient may be wrong by so many unit roundoffs u of what it computes in: 2^-4 for bf16
(u = 2^-8), 2^-7 for fp16 (u = 2^-11). A step rounds every layer's outputs, slopes and gradients to u; a batch cut
up otherwise rounds other sums, independently, so that errors add up as a random walk: about u √(2L) for L layers,
and √n more where the gradients of n shards nearly cancel. 16 covers L = 32 at n = 4. A strategy that forgets to
average, or a rank, is wrong by a half or more."""
COMPRESSED_ROUNDOFFS = 8
"""Where gradients are sent in a narrower type of unit roundoff u: each rank's share is rounded to it, and so is each
of n - 1 partial sums, independently: about u √n, and more where shares nearly cancel. 8 covers n = 16 and a gap."""
COMPRESSED_CHANGE_ROOTS = 4
"""Allowed error of what updates change, in units of √u, where gradients are sent in such a type: 0.25 for bf16, 0.09
for fp16. Adam reverses the updates of gradients smaller than the rounding of their sum, a share of about u."""
AUTOCAST_SMALL_GRADIENT = 0.1
"""`SMALL_GRADIENT` under autocast, where what ought to vanish is rounding of that size."""
UNSEEDED = (
    "draws from a source that no seed of torch, random or NumPy reaches, such as random.Random() or "
    "numpy.random.default_rng()"
)
"""Reason why a model's results differ from one time to the next."""
DRAWS_IN_UPDATE = (
    "the update draws random numbers, others on each rank: to keep replicas equal, draw them from a generator that is "
    "seeded alike on all ranks"
)
"""Reason why ranks that make the same update end otherwise."""
DRAWS_IN_PARTS = (
    "the update draws random numbers, and each rank draws its own for its part of the parameters: not comparable with "
    "one process"
)
"""Reason why ranks that update a part each end otherwise than one process."""
UNCHANGED = "no update changed a parameter: is the learning rate 0?"
_ROUNDING = TOLERANCES[torch.float32]
"""Rounding alone makes updates differ by no more than this, except where Adam amplifies it."""
_NOT_FINITE = (
    "parameters are not finite after these updates in one process either: is the learning rate too large?"
)
_BY_RANK = (
    "model() gives other parameters on each rank, though all are seeded alike before it: have it not seed by rank, or "
    "read a file that differs"
)
"""Reason why initial states differ where model() repeats its own."""
_OTHER_BITS = "the ranks' parameters differ, if only by rounding: all ranks must end with the same bits"
"""Note on replicas that are not equal, where the model is no reason for it."""
_BY_RANK_LATER = (
    "gives other {what} on each rank from the same state, batch and seeds: it reads RANK, or another thing that "
    "differs"
)
_TRAINS_OTHERS = (
    "it trains other parameters on each rank, so that their gradients cannot be averaged: have model() set "
    "requires_grad alike on all ranks"
)
_TRAINS_MORE = (
    "the model trains other parameters after some forwards than before, and strategies average those that it trains "
    "when they are given it: have model() set requires_grad as it is to stay"
)
_EXCHANGED = (
    f"{UPDATE_EXCHANGES}, and one process makes another one of the same gradients: these are averaged before it "
    "begins, and a sum of them over ranks multiplies them by the number of ranks"
)
MOST_HALVINGS = 40
"""fp16: so often is the loss's scale halved until gradients are finite."""


def relative_error(
    own: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    small: float = SMALL_GRADIENT,
    whole: torch.Tensor | None = None,
) -> float:
    """Return the largest error over parameters, as `SMALL_GRADIENT` says; infinite if the shapes differ.

    `whole` is the whole gradient's norm, where `reference` is a part of it.
    """
    if [gradient.shape for gradient in own] != [gradient.shape for gradient in reference]:
        return float("inf")
    if whole is None:
        whole = norm(reference)
    worst = 0.0
    for mine, expected in zip(own, reference, strict=True):
        scale = torch.maximum(torch.linalg.vector_norm(_wide(expected)), small * whole)
        error = float(torch.linalg.vector_norm(_wide(mine) - _wide(expected)) / scale)
        worst = max(worst, error) if math.isfinite(error) else float("inf")
    return worst


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a whole tensor: an embedding's may hold the rows of a batch alone."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in double precision."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all of them as one vector."""
    if not tensors:
        return torch.zeros((), dtype=torch.float64)
    norms = [torch.linalg.vector_norm(_wide(each)) for each in tensors]
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole


def _are_finite(values: Tensors) -> bool:
    return all(bool(torch.isfinite(each).all()) for each in values.values())


def _infinite_of(values: Tensors) -> list[str]:
    """Return the names of those that are not finite."""
    return [name for name, each in values.items() if not bool(torch.isfinite(each).all())]


def _has_numbers(batch: Any) -> bool:
    """Return whether all floating-point values of a batch are finite."""
    return all(bool(torch.isfinite(each).all()) for each in tensors(batch) if each.is_floating_point())


def not_compared(compared: Compared, dtype: str, note: str) -> Proof:
    """Says that a comparison would mean nothing here, and why."""
    return Proof(compared=compared, dtype=dtype, error=0.0, tolerance=math.inf, passed=True, note=note)


class Rank(Protocol):
    """What a comparison needs of the rank it is made in (`ddpbench.worker.verify.proof.Prover`)."""

    training: Training
    control: Control
    rank: int
    processes: int
    group: Any
    gathers: bool
    """The loss exchanges values between ranks: no process can compute another's part of it alone."""
    proves_double: bool
    """True if the case is also compared in float64."""
    unrepeatable: str
    """Why a step of the class's own gives other results each time; empty unless that was seen."""
    packed: bool
    """A batch's samples are packed, so that batches cannot be joined or cut."""

    def on_step(self) -> None: ...
    def blame(self, fault: str) -> None: ...
    def gradient(
        self, model: torch.nn.Module, shard: Any, precision: Precision, parts: int = 1
    ) -> Tensors: ...
    def agreed(self, value: float) -> float: ...
    def average(self, values: Tensors) -> Tensors: ...


@dataclass(slots=True)
class _Examined:
    """Findings about a model from one rank's samples."""

    differs: bool = False
    """Its gradient depends on the seed."""
    writes: list[str] = field(default_factory=list)
    """Parameters that a forward writes into."""
    reached: list[set[str]] = field(default_factory=list)
    """Parameters that get a gradient, under each seed."""
    infinite: list[str] = field(default_factory=list)
    """Parameters whose gradient is not finite."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step's batch, as a rank draws it."""

    own: tuple[Any, Any]
    """This rank's inputs and targets."""
    shards: Sequence[Any]
    """Those of all ranks that train."""

    def cast(self, dtype: torch.dtype | None) -> Drawn:
        """Return the same samples in this number type; as they are if it is None."""
        return Drawn(cast(self.own, dtype), [cast(shard, dtype) for shard in self.shards])


class Comparer:
    """The comparisons' means in one number type and precision; `shards` are the batches of all ranks that train."""

    def __init__(
        self,
        prover: Rank,
        numbers: Numbers,
        precision: Precision,
        shards: Sequence[Any],
        own_autocast: str = "",
        *,
        later: Sequence[Drawn] = (),
    ) -> None:
        """`own_autocast` is the type of one that the workload's loss enters itself: bf16, fp16, or none.

        `later` are the batches of a proof's last steps, one each; none where they train on the first once more.
        """
        self.prover, self.numbers, self.precision, self.shards = prover, numbers, precision, shards
        dtype, name = numbers.narrowest, numbers.name
        self.later = later
        self.training = prover.training
        self.name = name if precision.name == "full" else f"{name}, {precision.name} autocast"
        if own_autocast:
            self.name = f"{name}, its own {own_autocast} autocast"
        narrow = torch.finfo(dtype).eps / 2 if dtype not in TOLERANCES else 0.0
        roundoff = max(precision.unit_roundoff, roundoff_of(own_autocast), narrow)
        self._rounds = max(precision.unit_roundoff, roundoff_of(own_autocast)) > 0
        self.draws = False
        """True if a step's gradient depends on the seed, as with dropout; set by `examine`."""
        self.takes_turns = False
        """True if the strategy's replicas in one process go forward in turn, each with the seed of its shard."""
        self.first_loss: Any = None
        """The return value of the replica's first step."""
        self._has_stepped = False
        self.writes: list[str] = []
        """Parameters that the model's forward writes into; set by `examine`."""
        self.dropped: list[str] = []
        """Parameters that the losses of some ranks or seeds reach and others do not; set by `examine`."""
        self._infinite = ""
        self._sent_roundoff = 0.0
        self._lost: Callable[[], str] = str
        self._watched: list[tuple[torch.nn.Module, set[str]]] = []
        """Models, and the names of what each trained at first."""
        self._fault: str | None = None
        self._fault_of_updates: str | None = None
        self._gap_of_updates = 0.0
        self._update_exchanges = False
        self._fault_of_exchange: str | None = None
        self.tolerance = AUTOCAST_ROUNDOFFS * roundoff or TOLERANCES[dtype]
        self._small = AUTOCAST_SMALL_GRADIENT if roundoff else SMALL_GRADIENT

    def copied(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a copy of a model that trains as it does.

        One that torch copies without what it trains with (hooks of parameters, scripts, parameters over one memory), or
        not at all (weights that are computed, as by `weight_norm`; a lock, an open file), is made again and given the
        same state.
        """
        scripted = any(isinstance(each, torch.jit.ScriptModule) for each in model.modules())
        if not scripted and not hooked_parameters(model) and not share_memory(model):
            try:
                return copy.deepcopy(model)
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except NotImplementedError:  # of a tensor without a storage, such as a sparse matrix of rows
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

    def allow_for(self, replica: Replica) -> None:
        """Widens what is allowed by what the strategy itself rounds to on the way, and looks for what it leaves out."""
        self._lost = replica.watch_steps()
        if replica.unit_roundoff:
            self.tolerance = max(self.tolerance, COMPRESSED_ROUNDOFFS * replica.unit_roundoff)
            self._sent_roundoff = replica.unit_roundoff
            self._small = max(self._small, AUTOCAST_SMALL_GRADIENT)

    def watch(self, model: torch.nn.Module) -> None:
        """Note what a model trains, which its forwards may change."""
        self._watched.append((model, trained_names(model)))

    def _fault_of_thawing(self) -> str:
        """Return that a model's forwards add to what it trains; empty if they do not. All ranks call it together."""
        found = any(trained_names(model) - names for model, names in self._watched)
        return _TRAINS_MORE if self.prover.agreed(float(found)) else ""

    def error(self, own: Tensors, expected: Tensors) -> float:
        """Return the largest relative error of those that this rank has, infinite for one that does not exist."""
        return self._worst(own, expected)[0]

    def _worst(self, own: Tensors, expected: Tensors) -> tuple[float, str]:
        """Return that error, and whose it is."""
        if unknown := own.keys() - expected.keys():
            return math.inf, min(unknown)
        whole = norm(list(expected.values()))
        errors = {name: relative_error([own[name]], [expected[name]], self._small, whole) for name in own}
        name = max(errors, key=lambda one: errors[one], default="")
        return errors.get(name, 0.0), name

    def held(self, compared: Compared, own: Tensors, expected: Tensors) -> Proof:
        """Return the proof that they are equal; one that failed names the parameter that is furthest off here."""
        error, name = self._worst(own, expected)
        proof = self.proof(compared, error)
        if proof.passed or error <= proof.tolerance:
            return proof
        return replace(proof, note=f"on rank {self.prover.rank} the most in {name}")

    def change(
        self,
        compared: Compared,
        before: Tensors,
        own: Tensors,
        expected: Tensors,
        *,
        unchanged: str = UNCHANGED,
    ) -> Proof:
        """Return what updates made of this rank's parameters, compared with those of one process.

        `unchanged` is the note where no parameter changed.
        """
        allowed = CHANGE_TOLERANCES.get(self.numbers.narrowest)
        rounds = allowed is None or self._rounds
        if rounds and not self.prover.proves_double and compared == "update, same gradients":
            allowed, rounds = NARROW_CHANGE_TOLERANCE, False
        if allowed is None or rounds:
            note = "what updates change is finer than this type or precision resolves"
            note += ": float64 proves it" if self.prover.proves_double else ""
            return not_compared(compared, self.name, note)
        own = {name: value for name, value in own.items() if name not in self.writes}
        if note := self.fault_of_exchange():
            return not_compared(compared, self.name, note)
        if note := self._cannot_compare(before, own, expected):
            return not_compared(compared, self.name, note)
        error, changed = math.inf, True
        if own.keys() <= expected.keys():
            gaps = norm([own[name] - expected[name] for name in own])
            scale = norm([expected[name] - before[name] for name in own])
            changed = bool(scale) or bool(gaps)
            error = float(gaps / scale) if changed else 0.0  # infinite for what should not have changed
        if not self.prover.agreed(float(changed)):
            return not_compared(compared, self.name, unchanged)
        if compared == "parameters, same samples":
            allowed = max(allowed, COMPRESSED_CHANGE_ROOTS * math.sqrt(self._sent_roundoff))
        proof = self.proof(compared, error if math.isfinite(error) else math.inf, allowed)
        if self.writes and proof.passed:
            return replace(
                proof, note=f"{writes_sentence(self.writes)}; these are left out of this comparison"
            )
        return proof

    def _cannot_compare(self, before: Tensors, own: Tensors, expected: Tensors) -> str:
        """Return why changes of parameters cannot be compared on some rank; empty where they can. All ranks ask."""
        agreed = self.prover.agreed
        if agreed(float(bool(self.writes) and not own)):
            return writes_sentence(self.writes)
        frozen = sorted((own.keys() | before.keys()) - expected.keys())
        if agreed(float(bool(frozen) and before.keys() >= set(frozen))):
            shown = f" ({frozen[0].removeprefix('network.')}, ...)" if frozen else ""
            return f"the model freezes parameters{shown} after some forwards, and one process makes more than a rank"
        if agreed(float(not _are_finite(expected))) and agreed(float(not _are_finite(own))):
            ranks = ", ".join(map(str, self._spoiled()))
            return (
                f"{_NOT_FINITE} Samples of rank {ranks} hold NaN or infinite values" if ranks else _NOT_FINITE
            )
        return ""

    def settle_scale(self, model: torch.nn.Module, batch: Any) -> None:
        """Halves an fp16 loss's scale until this batch's gradients are finite on all ranks, as training would."""
        if self.precision.name != "fp16":
            return
        for _ in range(MOST_HALVINGS):
            gradient = self.prover.gradient(self.copied(model), batch, self.precision)
            infinite = not _are_finite(gradient)
            if not self.prover.agreed(float(infinite)) or not self.precision.lower_scale():
                return

    def examine(self, model: torch.nn.Module) -> None:
        """Find out what of a model decides what can be compared: whether it draws random numbers, what it writes."""
        number = self._own_shard
        trials: list[Tensors] = []
        found = _Examined()
        before = {name: each.detach() for name, each in model.named_parameters()}
        for turn in range(2):
            # Of a copy: a forward may change buffers such as running statistics.
            trial = self.copied(model)
            self.seed(number + turn * len(self.shards))
            start = random_state()
            trials.append(self.prover.gradient(trial, self.shards[number], self.precision))
            found.differs = found.differs or have_drawn(start, random_state())
            found.reached.append({name for name, each in trial.named_parameters() if each.grad is not None})
            found.writes += [name for name in changed_since(before, trial) if name not in found.writes]
        first, second = (list(each.values()) for each in trials)
        # A coin may fall alike under both seeds, and a generator of the model's own does not tell that it draws.
        found.differs = found.differs or relative_error(first, second) > TOLERANCES[torch.float32]
        found.infinite = _infinite_of(trials[0])
        # All ranks must make the same comparisons next.
        every = self._of_all_ranks(found)
        self.draws = any(each.differs for each in every)
        written, reached = (
            {name for each in every for name in each.writes},
            [one for each in every for one in each.reached],
        )
        used: set[str] = set().union(*reached)
        self.writes = [name for name in before if name in written]
        self.dropped = [name for name in before if name in used and any(name not in one for one in reached)]
        self._infinite = next(
            (self._on_infinite(rank, each.infinite) for rank, each in enumerate(every) if each.infinite), ""
        )

    @property
    def _own_shard(self) -> int:
        """The number of this rank's shard; 0 for a server and in a pipeline."""
        return max(self.prover.rank - (self.training.case.world_size - len(self.shards)), 0)

    def _of_all_ranks(self, own: _Examined) -> list[_Examined]:
        """Return what each rank found, in the order of ranks."""
        found: list[Any] = [own] * self.prover.processes
        if self.prover.processes > 1:
            dist.all_gather_object(found, own, group=self.prover.group)
        return found

    def _on_infinite(self, number: int, names: Sequence[str]) -> str:
        """Return that the gradient of these parameters is not finite on a rank or replica, and why that may be."""
        who = "replica" if self.training.strategy.one_process else "rank"
        why = (
            "its samples hold NaN or infinite values"
            if number in self._spoiled()
            else "have loss() give a finite one"
        )
        return (
            f"on {who} {number} the gradient of {in_words(names)} is not finite without the strategy either, so that "
            f"nothing can be compared with it: {why}"
        )

    def _spoiled(self) -> list[int]:
        """Return the ranks or replicas whose samples hold values that are not finite."""
        batches = [self.shards, *(drawn.shards for drawn in self.later)]
        found = {number for batch in batches for number, shard in enumerate(batch) if not _has_numbers(shard)}
        return sorted(number + self.training.case.world_size - len(self.shards) for number in found)

    @property
    def is_infinite(self) -> bool:
        """Return whether `examine` found a gradient that is not finite, on any rank."""
        return bool(self._infinite)

    def _fault_of_infinite(self) -> str:
        """Return on which rank or replica one process's gradient is not finite; empty if it is on all."""
        if not self._infinite and self.prover.processes == 1:
            for number, shard in enumerate(self.shards):
                if names := _infinite_of(self.prover.gradient(self.fresh(), shard, self.precision)):
                    self._infinite = self._on_infinite(number, names)
                    break
        return self._infinite

    def check_lost(self, proof: Proof) -> None:
        """Refuses a model of whose steps the strategy leaves something out, where a comparison failed.

        All ranks call it together.

        Raises:
            CannotTrainError: it did.
        """
        lost = "" if proof.passed else self._lost()
        if not proof.passed and self.prover.agreed(float(bool(lost))):
            raise CannotTrainError(lost or "see the other ranks")
        strategy, changed = self.training.strategy, proof.compared.startswith(("update", "parameters"))
        if proof.passed or not strategy.sends_parameters or not changed:
            return
        together = self._computed_together()
        if self.prover.agreed(float(bool(together))):
            raise CannotTrainError(parts_reason(strategy.name, together or "its optimizer"))

    def _computed_together(self) -> str:
        kept = random_state()
        found = computed_together(self.fresh, self.training.make_optimizer)
        set_random_state(kept)
        return found

    def explained(self, proof: Proof) -> Proof:
        """Return a comparison as it is recorded: one that failed because of the model does not fail the strategy.

        Ranks whose models are not equal stay a failure, which names what the model does. All ranks call it together.

        Raises:
            CannotTrainError: the strategy leaves something out of the model's steps.
        """
        if proof.passed:
            return self._unless_by_chance(proof)
        if proof.compared == "every parameter has a rank":
            return proof
        self.check_lost(proof)
        if infinite := self._fault_of_infinite():
            fault = infinite
        elif thawing := self._fault_of_thawing():
            fault = thawing
        elif proof.compared == "initial state":
            fault = self._fault_of_initial_state()
        elif proof.compared == "final replicas":
            fault = writes_sentence(self.writes) if self.writes else ""
            fault = fault if self.prover.agreed(float(bool(fault))) else ""
            fault = fault or self.fault_of_updates(exactly=True)
        else:
            fault = self.fault_of_gradients()
            if not fault and proof.compared.startswith(("update", "parameters")):
                fault = self.fault_of_updates()
            if fault and fault != self._updates_by_rank():
                return not_compared(proof.compared, self.name, fault)
        if not fault:
            return replace(proof, note=_OTHER_BITS) if proof.compared == "final replicas" else proof
        self.prover.blame(fault)
        return replace(proof, note=fault)

    def _unless_by_chance(self, proof: Proof) -> Proof:
        """Return a comparison that passed, unless the model has a fault that may have brought the two near each other.

        What updates change may be wrong by more than rounding and still pass. All ranks call it together.
        """
        changes = proof.was_made and proof.compared.startswith(("update", "parameters"))
        if not changes or proof.error <= _ROUNDING or not is_import_path(self.training.case.workload):
            return proof
        fault = self.fault_of_gradients() or self.fault_of_updates()
        if not fault or fault == self._updates_by_rank():
            return proof
        return not_compared(proof.compared, self.name, fault)

    def _fault_of_initial_state(self) -> str:
        """Return why the model's initial state is not the same on all ranks; empty where that is not the class's."""
        first, second = self.fresh(), self.fresh()
        if not self.prover.agreed(float(bool(changed_since(trained(first), second)))):
            return _BY_RANK if is_import_path(self.training.case.workload) else ""
        return f"two calls of model() give other parameters under the same seeds: it {UNSEEDED}"

    def fault_of_gradients(self) -> str:
        """Return what the model does that no strategy can be held to; empty where one process repeats its gradients.

        All ranks call it together; the answer is found once.
        """
        if self._fault is None:
            self._fault = self._found_fault()
        return self._fault

    def _found_fault(self) -> str:
        first, second = self.fresh(), self.fresh()
        values = trained(first)
        with torch.no_grad():
            for mine, other in zip(first.parameters(), second.parameters(), strict=True):
                other.copy_(mine)
        gradients = [self._seeded_gradient(model) for model in (first, second)]
        # State may follow the samples, as what quantisation observes: then the same ones once more leave it as it is.
        for number in range(1, len(self.shards)):
            self.gradient(first, number)
        gradients.append(self._seeded_gradient(first))
        gap, later = (self.prover.agreed(self.error(gradients[0], other)) for other in gradients[1:])
        if gap > self.tolerance:
            return (
                f"the model gives other gradients from the same state, batch and seeds: it {UNSEEDED}, or some "
                "operation of it is not deterministic"
            )
        if not self.prover.gathers and self.prover.processes > 1:
            others = self.prover.average(gradients[0])
            if self.prover.agreed(self.error(gradients[0], others)) > self.tolerance:
                return f"the loss {by_rank('gradients')}"
        writes = self.writes or changed_since(values, first)
        if self.prover.agreed(float(bool(writes))):
            return writes_sentence(writes)
        if later > self.tolerance:
            return (
                "the model keeps state from one forward to the next, so that a later one on the same batch gives "
                "other gradients"
            )
        return ""

    def fresh(self) -> torch.nn.Module:
        """Return a model in its initial state, in the comparison's types and precision."""
        return self.training.fresh_model(self.numbers.cast, self.precision)

    def _seeded_gradient(self, model: torch.nn.Module) -> Tensors:
        self.seed(0)
        return self.prover.gradient(model, self.shards[0], self.precision)

    def step(self, replica: Replica, batch: Any) -> None:
        """Have this rank's replica compute and aggregate the gradients of a batch; note the loss of its first."""
        loss = replica.gradients_of(*copied(batch))
        if not self._has_stepped:
            self._has_stepped, self.first_loss = True, loss

    def loss(self, model: torch.nn.Module, shard: int) -> float:
        """Return one process's loss over a shard, in parts as where a step accumulates them."""
        self.seed(shard)
        return self.loss_of(
            model, self.shards[shard], self.training.strategy.accumulated(self.training.options)
        )

    def loss_of(self, model: torch.nn.Module, batch: Any, parts: int = 1) -> float:
        """Return one process's loss over a batch: the mean over `parts` of it."""
        own = copied(batch)
        pieces = chunk(own, parts) if parts > 1 else [own]
        loss_of = self.training.workload.loss
        with torch.enable_grad():  # which some models need
            return sum(float(loss_of(model(inputs), targets)) for inputs, targets in pieces) / len(pieces)

    def update_replica(self, replica: Replica) -> None:
        """Updates this rank's replica; what that draws is seeded by the rank."""
        self._seed_update(self.prover.rank)
        self.precision.update(replica)

    def update(
        self,
        model: torch.nn.Module,
        gradient: Tensors,
        optimizer: torch.optim.Optimizer,
        rank: int | None = None,
    ) -> None:
        """Makes one process's update from these gradients; parameters without one take no part.

        What it draws is seeded as in `rank`'s update, this one's if None.
        """
        for name, parameter in model.named_parameters():
            parameter.grad = gradient[name].clone() if name in gradient else None
        self._seed_update(self.prover.rank if rank is None else rank)
        with noticing_exchanges() as seen:
            optimizer.step()
        self._update_exchanges |= seen.found
        optimizer.zero_grad(set_to_none=True)

    def _seed_update(self, rank: int) -> None:
        seed_all(self.training.case.seed + 1 + self.training.case.world_size + rank)

    def unless_by_rank(self, proof: Proof, reference: torch.nn.Module) -> Proof:
        """Return a proof that passed, unless updates made another reference on each rank. All ranks call it together.

        Where each rank updates a part of the parameters, its own reference has them as it made them.
        """
        if (
            not proof.passed
            or proof.note
            or all_equal(checksum(reference), self.prover.control, self.prover.processes)
        ):
            return proof
        fault = self.fault_of_updates()
        is_by_rank = bool(fault) and fault == self._updates_by_rank()
        return self.proof(proof.compared, math.inf, proof.tolerance) if is_by_rank else proof

    def fault_of_updates(self, *, exactly: bool = False) -> str:
        """Return what an update does that no strategy can be held to; empty where one process repeats it.

        Updates of two ranks may differ by what a comparison allows, or not at all. All ranks call it together; the
        answer is found once.
        """
        if self._fault_of_updates is None:
            self._fault_of_updates = self._found_fault_of_updates()
        return self._fault_of_updates or self._updates_by_rank(exactly=exactly)

    def _updates_by_rank(self, *, exactly: bool = False) -> str:
        """Return that updates differ by rank; empty where none was found to."""
        allowed = CHANGE_TOLERANCES.get(self.numbers.narrowest, NARROW_CHANGE_TOLERANCE)
        differ = self._gap_of_updates > (0.0 if exactly else allowed)
        return f"the update {by_rank('parameters')}" if differ else ""

    def _found_fault_of_updates(self) -> str:
        """Return that updates differ from time to time, or by seed; note how far they do by rank."""
        gradient = self.prover.average(self._seeded_gradient(self.fresh()))
        before = trained(self.fresh())
        made, digests = [], []
        for rank in (0, 0, 1):
            model = self.fresh()
            optimizer = self.training.make_optimizer(model.parameters())
            for _ in range(3):  # a schedule may begin at a learning rate of zero
                self.update(model, gradient, optimizer, rank)
            made.append(trained(model))
            digests.append(checksum(model))
        differs = [any(not same(each[name], made[0][name]) for name in each) for each in made[1:]]
        again, elsewhere = (bool(self.prover.agreed(float(each))) for each in differs)
        if again:
            return f"the update gives other parameters from the same gradients and seeds: it {UNSEEDED}"
        if not all_equal(digests[0], self.prover.control, self.prover.processes):
            average = self.prover.average(made[0])
            gap, whole = (
                float(norm([made[0][name] - other[name] for name in other])) for other in (average, before)
            )
            self._gap_of_updates = self.prover.agreed(gap / whole if whole else math.inf)
        if self._updates_in_parts() and (elsewhere or self._draws_in_updates()):
            return DRAWS_IN_PARTS
        return DRAWS_IN_UPDATE if elsewhere else ""

    def _updates_in_parts(self) -> bool:
        """Return whether each rank updates a part of the parameters."""
        strategy = self.training.strategy
        divides = strategy.sends_parameters or not strategy.replicas_equal
        return (
            self.prover.processes > 1 and divides and strategy.promise(self.training.options) == "gradients"
        )

    def _draws_in_updates(self) -> bool:
        """Return whether an update draws on any rank, from whichever generator."""
        kept = random_state()
        found = draws(self.fresh, self.training.make_optimizer)
        set_random_state(kept)
        return bool(self.prover.agreed(float(found)))

    def update_exchanges(self) -> bool:
        """Return whether an update has exchanged values between ranks. All ranks call it together."""
        return bool(self.prover.agreed(float(self._update_exchanges)))

    def fault_of_exchange(self) -> str:
        """Return that updates exchange values, and that one process alone makes others; empty where they do not.

        All ranks call it together; the answer is found once.
        """
        if self._fault_of_exchange is None and self.update_exchanges():
            self._fault_of_exchange = self._found_fault_of_exchange()
        return self._fault_of_exchange or ""

    def _found_fault_of_exchange(self) -> str:
        gradient, before = self._seeded_gradient(self.fresh()), trained(self.fresh())
        among = self._updated(gradient)
        moved = norm([value - before[name] for name, value in among.items()])
        allowed = CHANGE_TOLERANCES.get(self.numbers.narrowest, CHANGE_TOLERANCES[torch.float32])
        # Whether one process is to know that it is alone: what multiplies a rate by the number of ranks is not to, and
        # what divides a sum by it is to.
        for made_alone, says_so in itertools.product((False, True), repeat=2):
            gap = math.inf
            try:
                lone = self._updated(gradient, made_alone=made_alone, says_so=says_so)
                gaps = norm([lone[name] - value for name, value in among.items()])
                gap = float(gaps / moved) if gaps else 0.0
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception:  # what is made for several ranks may fail in one
                traceback.print_exc()
            if self.prover.agreed(gap if math.isfinite(gap) else math.inf) <= allowed:
                return ""
        return _EXCHANGED

    def _updated(
        self, gradient: Tensors, *, made_alone: bool | None = None, says_so: bool = False
    ) -> Tensors:
        """Return what updates from this gradient make of a fresh model: among all ranks if `made_alone` is None.

        Else each rank makes them alone, also the optimizer if `made_alone`, and `RANK` says so if `says_so`.

        Raises:
            RuntimeError: they exchange values over another group, so that no rank makes them alone.
        """
        model, device = self.fresh(), self.training.device
        with alone(device, says_so=says_so) if made_alone else nullcontext():
            optimizer = self.training.make_optimizer(model.parameters())
        with (
            nullcontext() if made_alone is None else alone(device, says_so=says_so),
            noticing_exchanges() as seen,
        ):
            for _ in range(3):  # a schedule may begin at a learning rate of zero
                self.update(model, gradient, optimizer)
        if made_alone is not None and seen.found:
            raise RuntimeError("the update exchanges values over a group that is not the default one")
        return trained(model)

    def average_afresh(self) -> Tensors:
        """Return `average`, each shard's gradient of a model that no forward has changed."""
        if self.prover.gathers:
            return self.average(self.fresh())
        return mean(self._gradient_afresh(number) for number in range(len(self.shards)))

    def _gradient_afresh(self, shard: int) -> Tensors:
        model = self.fresh()  # which seeds: before the shard's own seed
        return self.gradient(model, shard)

    def seed(self, shard: int) -> None:
        """Seeds what a step draws, alike wherever this shard's is computed."""
        seed_all(self.training.case.seed + 1 + shard)

    def gradient(self, model: torch.nn.Module, shard: int, shards: Sequence[Any] | None = None) -> Tensors:
        """Return one process's gradient over a shard, of the first batch unless others are given.

        Where the strategy accumulates, it is cut as a rank cuts it: dropout, BatchNorm and a mean over words make
        another gradient of the whole.
        """
        self.seed(shard)
        batch = (self.shards if shards is None else shards)[shard]
        parts = self.training.strategy.accumulated(self.training.options)
        return self.prover.gradient(model, batch, self.precision, parts)

    def average(self, model: torch.nn.Module) -> Tensors:
        """Return the mean over shards of each shard's gradient, from the same state and seeds, in this process.

        Where the loss gathers, each rank computes its own shard's at the same time, and the mean is over ranks.
        """
        if self.prover.gathers:
            return self.prover.average(self.gradient(model, self.prover.rank))
        return mean(self.gradient(model, number) for number in range(len(self.shards)))

    def average_reached(self, model: torch.nn.Module, shards: Sequence[Any], without: Set[str]) -> Tensors:
        """Return that mean over these shards, without the parameters that none reaches and the strategy leaves out.

        `without` names all that this rank's update left out; what another's shard has reached is not left out there.
        """
        own = (self.prover.rank,) if self.prover.gathers else range(len(shards))
        found, reached = self.mean_reached([(model, number) for number in own], shards)
        if self.prover.gathers:
            found = self.prover.average(found)
        return {name: value for name, value in found.items() if name in reached or name not in without}

    def mean_reached(
        self, trained_by: Iterable[tuple[torch.nn.Module, int]], shards: Sequence[Any] | None = None
    ) -> tuple[Tensors, set[str]]:
        """Return the mean gradient of models, each over the shard of its number, and what any of them reaches."""
        reached: set[str] = set()

        def noted() -> Iterator[Tensors]:
            for model, number in trained_by:
                yield self.gradient(model, number, shards)
                reached.update(name for name, each in model.named_parameters() if each.grad is not None)

        return mean(noted()), reached

    def own_gradients(self, replica: Replica) -> Tensors:
        """Return what the strategy aggregated, without the loss's scale."""
        found = replica.own_gradients()
        return {name: self.precision.true_gradient(dense(grad)) for name, grad in found.items()}

    def proof(self, compared: Compared, error: float, tolerance: float | None = None) -> Proof:
        """Return the worst rank's error, which every rank learns."""
        worst = self.prover.agreed(error)
        allowed = self.tolerance if tolerance is None else tolerance
        return Proof(
            compared=compared, dtype=self.name, error=worst, tolerance=allowed, passed=worst <= allowed
        )


GATHERS = (
    "the loss exchanges values between ranks, so that one process computes another loss: each rank's gradient is "
    "computed with the same exchange, and the strategy's is compared with their mean"
)
"""The note on a comparison that one process cannot be the reference of."""


def has_batch_statistics(model: torch.nn.Module) -> bool:
    """Return whether layers of it depend on the whole batch, as BatchNorm does."""
    return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())


def share_memory(model: torch.nn.Module) -> bool:
    """Return whether two parameters of a model lie over one memory: a copy of it gives each its own."""
    places = [
        each.untyped_storage().data_ptr() for each in model.parameters() if each.layout == torch.strided
    ]
    return len(set(places)) < len(places)


def by_rank(what: str) -> str:
    """Return that what a class computes differs by rank, and why that may be."""
    return _BY_RANK_LATER.format(what=what)


def check_trained(prover: Rank, model: torch.nn.Module) -> None:
    """Refuses a model of which each rank trains other parameters: what ranks send would not fit together.

    Raises:
        CannotTrainError: the ranks' names differ, on all ranks.
    """
    names = "\n".join(sorted(trained_names(model)))
    digest = hashlib.sha256(names.encode()).hexdigest()
    if not all_equal(digest, prover.control, prover.processes):
        raise CannotTrainError(_TRAINS_OTHERS)


def trained_names(model: torch.nn.Module) -> set[str]:
    """Return the names of the parameters that a model trains."""
    return {name for name, each in model.named_parameters() if each.requires_grad}


def trained(model: torch.nn.Module) -> Tensors:
    """Return copies of a model's trained parameters."""
    return {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}


def thaw(model: torch.nn.Module, names: Collection[str]) -> None:
    """Makes parameters trained again that steps may have frozen, so that they are compared."""
    for name, each in model.named_parameters():
        if name in names:
            each.requires_grad_(True)


def mean(parts: Iterable[Tensors]) -> Tensors:
    """The mean of tensors by name, added in their order, one at a time: a generator's are not all kept.

    A name that some lack, as of a parameter that is frozen midway, is not in it.
    """
    total: Tensors = {}
    count = 0
    for part in parts:
        total = {name: total[name] + part[name] for name in total if name in part} if count else part
        count += 1
    return {name: value / count for name, value in total.items()}
