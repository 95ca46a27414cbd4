"""Compare strategies with one process; there is one check function for each of `strategies.PROMISES`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddpbench.causes import exception_words
from ddpbench.collectives.exchange import gather_values, texts
from ddpbench.measure.recorder import NullRecorder
from ddpbench.records import ComparedQuantity, Proof
from ddpbench.strategies import TABLE as SHIPPED
from ddpbench.strategies import Promise, Replica
from ddpbench.strategies.base import (
    CannotTrainError,
    CompensatedReplica,
    ModelFound,
    OrderedReplica,
    PeriodicReplica,
    hooked_parameters,
)
from ddpbench.strategies.trees import concatenate
from ddpbench.worker.training.randomness import random_state, seed_all, set_random_state
from ddpbench.worker.training.training import Training, all_equal, checksum
from ddpbench.worker.verify.answers import averaging_of, check_promised, kept_of, log_of, loss_of, read_log
from ddpbench.worker.verify.comparing import (
    GATHERS,
    ROUNDING,
    Comparer,
    check_trained,
    gap,
    not_compared,
    settle_scale,
)
from ddpbench.worker.verify.each_step import EachStep, is_own
from ddpbench.worker.verify.inspection import blocks_of
from ddpbench.worker.verify.one_process import OwnReference
from ddpbench.worker.verify.refusals import waits_for
from ddpbench.worker.verify.values import Tensors, has_batch_statistics, mean, norm, trained, trained_names
from ddpbench.worker.verify.written import same

FINAL_STEPS = 3
COMPRESSED_STEPS = 3
MOST_KEPT = 0.95
"""Largest fraction of gradients that may be unsent after `COMPRESSED_STEPS` steps on one batch.

The fraction is checked separately for matrices and vectors, because PowerSGD sends the largest part of a matrix first,
and the rest in turn. If more is unsent, steps with zero gradients must send part of it (`MOST_LEFT`), because top-k may
send some numbers last.
"""
LEAST_SENT = 1e-3
"""Least fraction of the unsent gradients, by norm, that steps with zero gradients must send. The unsent gradients must
shrink by at least this fraction.
"""
MOST_LEFT = 0.5
"""Largest fraction of the unsent gradients that may be left after `MOST_SENDING` steps with zero gradients, if more
than `MOST_KEPT` was unsent before. A hook that sends a thousandth of them per step leaves 82 %.
"""
NOT_SHRUNK = 1 - 1e-7
"""Unsent gradients count as not shrunk if more than this fraction of them is left. Sending `LEAST_SENT` of parts that
are orthogonal to the rest shrinks the norm by 5e-7.
"""
MOST_GROWN = 100.0
"""Unsent gradients that grow by more than this factor count as growing without limit."""
MOST_SENDING = 200
"""Number of steps with zero gradients within which unsent gradients must be sent."""
SENT_ENOUGH = 0.1
"""Fraction that decides whether gradients that were not sent will never be sent, or only later. Suppose that nothing of
the vectors was sent. If at most this fraction of the matrices is left after all steps, vectors count as never sent.
"""
MOST_STEPS_APART = 100


def follows_updates(training: Training) -> bool:
    """Return whether steps after the first update are compared too, on separate batches.

    Replicas that stay equal prove later steps. But ranks may hold different parts, receive parameters, or use a
    framework or a user's algorithm, whose loop may apply a wrong learning rate, batch or momentum later.
    """
    strategy, own = training.strategy, is_own(training)
    return own or not strategy.replicas_equal or strategy.sends_parameters or bool(strategy.framework)


def compare(comparer: Comparer, own: tuple[Any, Any]) -> Iterator[Proof]:
    """Train a fresh model on this rank's batch, and yield the proofs that the strategy's promise calls for."""
    prover, training, precision = comparer.prover, comparer.training, comparer.precision
    strategy = training.strategy
    promise: Promise = strategy.promise(training.options)
    model = training.fresh_model(comparer.numbers.cast, precision)
    check_trained(prover, model)
    equal = all_equal(checksum(model), prover.control, prover.processes)
    initial = comparer.explained(comparer.proof("initial state", 0.0 if equal else math.inf, 0.0))
    yield initial
    if not initial.passed and initial.note:  # nothing after the initial state can be equal
        return
    reference = comparer.one.copied(model) if promise != "nothing" else model
    settle_scale(comparer, model, own)
    distributed = dist.is_initialized() and strategy.uses_backend
    replica = training.replica(model, NullRecorder(), distributed=distributed, precision=precision)
    check_promised(replica, training.strategy.name, promise)
    comparer.allow_for(replica)
    for each in (reference, replica.job.model):
        comparer.faults.watch(each)
    batch = own if replica.draws else (None, None)
    if promise != "nothing":
        comparer.model.examine(reference)
        _refuse_waiting(comparer, reference)
    if comparer.model.draws:
        comparer.takes_turns = replica.take_turns(comparer.one.seed)
    if comparer.model.is_infinite:
        yield comparer.explained(comparer.proof("gradients, same shards", math.inf))
    elif promise == "gradients" and comparer.updates.waits(reference):
        yield comparer.explained(comparer.proof("update, same gradients", math.inf))
    else:
        yield from map(comparer.explained, _CHECKS[promise](comparer, replica, reference, batch))
        if promise != "nothing" and training.case.strategy not in SHIPPED:
            yield from map(comparer.explained, _loss(comparer, replica))
    replica.close()


def _loss(comparer: Comparer, replica: Replica) -> Iterator[Proof]:
    """Compare the first step's mean loss over ranks with one process's, because times to a target loss need it.

    Losses are not compared under autocast, which rounds them, or if the model draws random numbers.
    """
    prover, strategy = comparer.prover, comparer.training.strategy
    apart = prover.processes > 1 and not strategy.whole_batches and len(comparer.shards) == prover.processes
    if comparer.model.draws or comparer.precision.name != "full" or (prover.gathers and not apart):
        return
    own = loss_of(comparer.first_loss) if replica.knows_loss else 0.0
    shards = [prover.rank] if apart else range(len(comparer.shards))
    losses = [comparer.one.loss(comparer.one.fresh(), number) for number in shards]
    values = {"own": own, "knows": float(replica.knows_loss), "expected": sum(losses) / len(losses)}
    mean_of = prover.average(
        {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    )
    expected, knows = float(mean_of["expected"]), float(mean_of["knows"])
    if not knows:
        return
    scale = prover.agreed(max(map(abs, losses))) or 1.0
    error = abs(float(mean_of["own"]) / knows - expected) / scale
    yield comparer.proof("loss, same samples", error if math.isfinite(error) else math.inf)


def _refuse_waiting(comparer: Comparer, model: torch.nn.Module) -> None:
    """Refuse a model whose ranks use different parameters and would wait for one another.

    Raises:
        CannotTrainError: the strategy has no setting for such models; raised on all ranks.
        RuntimeError: the strategy has a setting for them; raised on all ranks.
    """
    training = comparer.training
    names = [name.removeprefix("network.") for name in comparer.model.dropped]
    if not names or comparer.prover.processes == 1:
        return
    if waits := waits_for(training, names):
        raise RuntimeError(waits)
    parts = blocks_of(model, comparer.model.dropped) or names
    found = ModelFound(trained=(), dropped_blocks=tuple(parts))
    if reason := training.strategy.found_reason(training.case, found):
        raise CannotTrainError(reason)


def _nothing(comparer: Comparer, replica: Replica, reference: torch.nn.Module, batch: Any) -> Iterator[Proof]:
    """Make one step, to see that it works; the strategy promises nothing to compare."""
    comparer.one.seed(comparer.prover.rank)
    comparer.step(replica, batch)
    comparer.prover.on_step()
    yield from ()


def _gradients(
    comparer: Comparer, replica: Replica, reference: torch.nn.Module, batch: Any
) -> Iterator[Proof]:
    prover, precision, later = comparer.prover, comparer.precision, comparer.later
    training, whole = comparer.training, trained_names(reference)
    updates = training.case.compute == "real" and precision.name == "full"
    own_reference = OwnReference(comparer.one, reference) if updates else None
    repeats = not comparer.model.draws or not (training.strategy.framework or _draws_elsewhere(comparer))
    follows = updates and bool(later) and repeats
    each_step = EachStep(comparer, replica, reference) if follows else None
    _step(comparer, replica, batch, comparer.shards, each_step)
    own = comparer.own_gradients(replica)
    compared = _SameShards(comparer, reference)
    yield compared.proof(own)
    yield _over_whole_batch(comparer, reference, own, compared)
    yield from _completeness(comparer, whole, own)
    idle = replica.unused()
    comparer.update_replica(replica)
    before = trained(reference)
    shared = own_reference is not None and own_reference.model is reference
    trainee = comparer.one.copied(reference) if follows and shared else reference
    comparer.faults.watch(trainee)
    optimizer = training.make_optimizer(trainee.parameters())
    made = 1
    if own_reference is not None:
        used = {name: gradient for name, gradient in own.items() if name not in idle}
        own_reference.update(used)
        # Nothing is compared until an update has changed something, as a schedule may start with a learning
        # rate of zero.
        while made < FINAL_STEPS and prover.agreed(float(_as_before(own_reference.model, before))):
            _step(comparer, replica, batch, comparer.shards, each_step)
            again = comparer.own_gradients(replica)  # differs if the model draws or keeps state
            used = {name: gradient for name, gradient in again.items() if name not in replica.unused()}
            comparer.update_replica(replica)
            own_reference.update(used)
            made += 1
        expected, after = trained(own_reference.model), replica.own_parameters()
        yield comparer.change("update, same gradients", before, after, expected)
    drawn = [each.own if replica.draws else batch for each in later] or [batch] * (FINAL_STEPS - 1)
    left_out = [idle] * made
    batches = [each.shards for each in later] or [()] * len(drawn)
    for following, shards in zip(drawn, batches, strict=True):
        left_out.append(_stepped(comparer, replica, following, shards, each_step))
    yield from each_step.proofs() if each_step else ()
    if follows:
        batches = [*[comparer.shards] * made, *(each.shards for each in later)]
        steps = _Steps(comparer, batches, left_out, at_once=compared.at_once)
        expected, after = steps.train(trainee, optimizer), replica.own_parameters()
        proof = comparer.change("parameters, same samples", before, after, expected, train=steps.train)
        apart = not shared and not compared.at_once
        if own_reference is not None and apart and _trains_apart(proof, comparer):
            trainee = own_reference.after([each.shards for each in later], left_out[made:])
            expected, train = trained(trainee), partial(steps.train, apart=True)
            proof = comparer.change("parameters, same samples", before, after, expected, train=train)
        yield comparer.unless_by_rank(proof, trainee)
    yield from _final(comparer, replica)


@dataclass(frozen=True, slots=True)
class _Steps:
    comparer: Comparer
    batches: Sequence[Sequence[Any]]
    """Each step's batches of all ranks that train."""
    left_out: Sequence[Collection[str]]
    """For each step, the names of the parameters that the replica's update left out."""
    at_once: bool
    """True if the strategy computes the whole batch's gradient at once."""

    def train(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        apart: bool = False,
    ) -> Tensors:
        """Train a model in its initial state and return its parameters; with `apart`, on this rank's shards only."""
        one = self.comparer.one
        optimizer = optimizer or self.comparer.training.make_optimizer(model.parameters())
        for shards, without in zip(self.batches, self.left_out, strict=True):
            parts = [concatenate(shards)] if self.at_once else shards
            one.update(model, one.average_reached(model, parts, set(without), apart=apart), optimizer)
        return trained(model)


def _step(
    comparer: Comparer,
    replica: Replica,
    batch: Any,
    shards: Sequence[Any],
    each_step: EachStep | None,
) -> None:
    if each_step:
        each_step.expect(shards)
    comparer.one.seed(comparer.prover.rank)
    comparer.step(replica, batch)
    comparer.prover.on_step()
    if each_step and each_step.compares:
        each_step.compare(comparer.own_gradients(replica))


def _stepped(
    comparer: Comparer, replica: Replica, batch: Any, shards: Sequence[Any], each_step: EachStep | None
) -> set[str]:
    _step(comparer, replica, batch, shards, each_step)
    idle = replica.unused()
    comparer.update_replica(replica)
    return idle


def _trains_apart(proof: Proof, comparer: Comparer) -> bool:
    """Return whether to repeat the comparison with a model per rank, because its state may depend on the samples."""
    strategy, processes = comparer.training.strategy, comparer.prover.processes
    differs = not proof.passed or proof.error > ROUNDING
    return differs and processes == len(comparer.shards) > 1 and not strategy.whole_batches


def _as_before(model: torch.nn.Module, before: Tensors) -> bool:
    return all(same(value, before[name]) for name, value in trained(model).items() if name in before)


def _final(comparer: Comparer, replica: Replica) -> Iterator[Proof]:
    prover = comparer.prover
    if comparer.training.strategy.replicas_equal and prover.processes > 1:
        replica.refresh_model()
        equal = all_equal(checksum(replica.job.model), prover.control, prover.processes)
        yield comparer.proof("final replicas", 0.0 if equal else math.inf, 0.0)


def _completeness(comparer: Comparer, whole: set[str], own: Tensors) -> Iterator[Proof]:
    prover = comparer.prover
    if not prover.agreed(float(len(own) < len(whole))):
        return
    names = gather_values(list(own), texts, prover.group)
    lost = sorted(whole.difference(*names))
    proof = comparer.proof("every parameter has a rank", math.inf if lost else 0.0, 0.0)
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        proof = replace(
            proof, note=f"no rank trains {lost[0].removeprefix('network.')}{more}, which the model trains"
        )
    yield proof


class _SameShards:
    """Averages one process's gradients over the ranks' shards, and compares a rank's gradients with the average."""

    def __init__(self, comparer: Comparer, reference: torch.nn.Module) -> None:
        self._comparer, self._reference = comparer, reference
        self.expected: Tensors | None = None
        """The reference: one process's gradients, averaged over the ranks' shards. None if the strategy draws random
        numbers in a different order.
        """
        self.hooked = bool(hooked_parameters(reference))
        self.at_once = False
        """True if the strategy computes the whole batch's gradient at once, and this gradient is not the shards' mean.
        """

    def proof(self, own: Tensors) -> Proof:
        comparer, training = self._comparer, self._comparer.training
        strategy, several = training.strategy, training.case.world_size > 1
        if comparer.model.draws and several and _draws_elsewhere(comparer):
            who = "replicas" if strategy.one_process else strategy.pieces
            note = f"the model draws random numbers, and its {who} draw them in a different order: not comparable"
            return not_compared("gradients, same shards", comparer.name, note)
        self.expected = comparer.one.average(self._reference)
        proof = comparer.held("gradients, same shards", own, self.expected)
        if not proof.passed:
            # Forwards may change what later forwards compute: they write weights, or keep state.
            self.expected = comparer.one.average_afresh()
            proof = comparer.held("gradients, same shards", own, self.expected)
        if not proof.passed and strategy.one_process and several:
            note = _HOOKED_AT_ONCE if self.hooked else ""
            if not note and self._is_of_whole_batch(own):
                note = _AT_ONCE
            if note:
                self.at_once = True
                proof = not_compared("gradients, same shards", comparer.name, note)
        return proof

    def _is_of_whole_batch(self, own: Tensors) -> bool:
        """Return whether `own` is the gradient over the whole batch. All ranks must call this together."""
        comparer = self._comparer
        batch, left_out = _joined(comparer, self._reference)
        if left_out:
            return False
        try:
            whole = _of_whole_batch(comparer, self._reference, batch)
        except _WholeBatchError:
            return False
        return whole is not None and gap(comparer, own, whole) <= comparer.tolerances.gradient


def _over_whole_batch(
    comparer: Comparer, reference: torch.nn.Module, own: Tensors, shards: _SameShards
) -> Proof:
    batch, note = _joined(comparer, reference)
    whole: Tensors | None = None
    if not note:
        try:
            whole = _of_whole_batch(comparer, reference, batch)
        except _WholeBatchError as problem:
            note = f"the model cannot compute the whole batch at once, so only shards are compared: {problem}"
        else:
            if whole is None:
                note = (
                    "the whole batch does not fit into one GPU's memory: only the ranks' shards are compared"
                )
    if whole is None:
        return not_compared("gradients, whole batch", comparer.name, note)
    if shards.at_once:
        return comparer.held("gradients, whole batch", own, whole)
    expected, prover = shards.expected, comparer.prover
    assert expected is not None
    means = comparer.training.workload.whole_batches
    apart = gap(comparer, expected, whole)
    if means and apart > comparer.tolerances.gradient:
        # Earlier forwards may have changed what later ones compute; on fresh models, the results may be
        # equal.
        expected = comparer.one.average_afresh()
        whole = prover.gradient(comparer.one.fresh(), batch, comparer.precision)
        apart = gap(comparer, expected, whole)
    if means and apart > comparer.tolerances.gradient:
        note = (
            comparer.faults.of_gradients()
            or (_HOOKED if shards.hooked else "")
            or (_NOT_LINEAR if _is_mean(comparer, batch) else _NOT_MEAN).format(gap=apart)
        )
        return not_compared("gradients, whole batch", comparer.name, note)
    return comparer.held("gradients, whole batch", own, whole)


_HOOKED_AT_ONCE = (
    "hooks of parameters get the whole batch's gradients at once, as in one process: these gradients are "
    "compared"
)
_AT_ONCE = (
    "the strategy computes the whole batch's gradient at once, as one process does. Here this gradient differs "
    "from the mean of the shards' and is compared instead"
)
_NOT_MEAN = (
    "the loss is not a mean over samples (the mean of one process's gradients over shards differs from its "
    "gradient over the whole batch by {gap:.1e}), as with samples of unequal numbers of words: strategies that "
    "average gradients train differently from one process"
)
_NOT_LINEAR = (
    "the loss is a mean over samples, but its gradient is not (the mean of one process's gradients over shards "
    "differs from its gradient over the whole batch by {gap:.1e}), as where backward() clamps gradients: "
    "strategies that average gradients train differently from one process"
)


def _is_mean(comparer: Comparer, batch: Any) -> bool:
    """Return whether the shards' mean loss is the whole batch's loss. All ranks must call this together."""
    losses = [comparer.one.loss(comparer.one.fresh(), number) for number in range(len(comparer.shards))]
    gap = abs(sum(losses) / len(losses) - comparer.one.loss_of(comparer.one.fresh(), batch))
    allowed = comparer.tolerances.gradient * max(map(abs, losses), default=0.0)
    return comparer.prover.agreed(float(gap > allowed)) == 0.0


def _joined(comparer: Comparer, reference: torch.nn.Module) -> tuple[Any, str]:
    """Join all ranks' batches; None and the reason if the gradient cannot be compared."""
    if comparer.prover.gathers:
        return None, GATHERS
    if comparer.prover.packed:
        return None, "samples are packed in rows that cannot be joined, so the whole batch is not compared"
    if comparer.model.draws:
        return None, "the model draws random numbers, which differ between the whole batch and shards"
    if comparer.training.workload.batch_statistics or has_batch_statistics(reference):
        return None, (
            "BatchNorm's statistics differ between shards, as they should: the whole batch is not compared"
        )
    try:
        return concatenate(comparer.shards), ""
    except ValueError as problem:
        return None, f"the ranks' batches cannot be joined, so the whole batch is not compared: {problem}"


def _draws_elsewhere(comparer: Comparer) -> bool:
    strategy = comparer.training.strategy
    return (strategy.one_process and not comparer.takes_turns) or strategy.whole_batches


_HOOKED = (
    "hooks of parameters change each shard's gradients before averaging: over the whole batch, one process gets "
    "different gradients"
)


class _WholeBatchError(Exception):
    """The model cannot compute a batch as large as all ranks' together."""


def _of_whole_batch(comparer: Comparer, reference: torch.nn.Module, batch: Any) -> Tensors | None:
    """Return one process's gradient over the joined batch; None if some GPU has too little memory.

    Raises:
        _WholeBatchError: the model cannot compute a batch of this size on some rank.
    """
    prover = comparer.prover
    whole: Tensors | None = None
    problem = ""
    with suppress(torch.OutOfMemoryError):
        try:
            model = (
                comparer.one.fresh() if comparer.model.writes else reference
            )  # an earlier forward wrote to the reference
            whole = prover.gradient(model, batch, comparer.precision)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:  # due to state of an earlier forward, or to the size
            problem = exception_words(error)
    if prover.agreed(float(bool(problem))):
        again = ""
        with suppress(torch.OutOfMemoryError):
            try:
                whole = prover.gradient(comparer.one.fresh(), batch, comparer.precision)
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except (Exception, SystemExit) as error:
                again = exception_words(error)
        if prover.agreed(float(bool(again))):
            raise _WholeBatchError(again or problem)
    if not prover.agreed(float(whole is None)):
        return whole
    reference.zero_grad(set_to_none=True)
    if prover.training.device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def _delayed(comparer: Comparer, replica: Replica, reference: torch.nn.Module, batch: Any) -> Iterator[Proof]:
    """Check a replica that sends parts of its gradients in later steps.

    Parameters are not updated between these steps, so that every step has the same true gradient.
    """
    assert isinstance(replica, CompensatedReplica)
    prover = comparer.prover
    made = itertools.count()

    def step() -> Tensors:
        comparer.one.seed(prover.rank)
        with _seeded_backward(comparer, replica, next(made)):
            comparer.step(replica, batch)
        prover.on_step()
        own = comparer.own_gradients(replica)
        replica.optimizer.zero_grad(set_to_none=True)
        return own

    expected = comparer.one.average(reference)
    early = max((gap(comparer, step(), expected) for _ in range(replica.exact_steps)), default=0.0)
    yield comparer.proof("gradients, same shards", early)
    steps = [step() for _ in range(COMPRESSED_STEPS)]
    own = {name: value.clone() for name, value in kept_of(replica, expected).items()}
    kept = prover.average(own)
    total = {name: value * COMPRESSED_STEPS for name, value in mean(steps).items()}
    sums = {name: value + kept[name] for name, value in total.items()}
    whole = {name: value * COMPRESSED_STEPS for name, value in expected.items()}
    right = comparer.held("sums of gradients, with what is kept", sums, whole)
    sent = _sent_of_kept(comparer, replica, step, COMPRESSED_STEPS) if right.passed else None
    if sent is not None:
        left = prover.average(kept_of(replica, expected))
        sums = {name: value + sent[name] + left[name] for name, value in total.items()}
        right = comparer.held("sums of gradients, with what is kept", sums, whole)
    yield right
    yield _share_kept(_Kept(comparer, replica, reference, whole, own, kept), step, sent)
    for _ in range(FINAL_STEPS):
        comparer.step(replica, batch)
        comparer.update_replica(replica)
        prover.on_step()
    yield from _final(comparer, replica)


@contextmanager
def _seeded_backward(comparer: Comparer, replica: Replica, step: int) -> Iterator[None]:
    """Seed the draws after a step's first gradient by rank and step.

    Forward passes stay equal, but a strategy that chooses gradients at random chooses differently in each step.
    """
    model, kept, case = replica.job.model, _States(), comparer.training.case
    fresh = case.seed + 1 + comparer.prover.rank + (2 + step) * case.world_size

    def seed(gradient: torch.Tensor) -> None:
        if kept.forward is None:
            kept.forward = random_state()
            if kept.backward is None:
                seed_all(fresh)
            else:
                set_random_state(kept.backward)

    def go_on(module: torch.nn.Module, inputs: Any) -> None:
        if kept.forward is not None:  # another part of an accumulated batch
            kept.backward = random_state()
            set_random_state(kept.forward)
            kept.forward = None

    parameters = [each for each in model.parameters() if each.requires_grad]
    handles = [each.register_hook(seed) for each in parameters]  # type: ignore[no-untyped-call]
    handles.append(model.register_forward_pre_hook(go_on))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(slots=True)
class _States:
    """Generator states of forward and of backward passes, which draw separately."""

    forward: Any = None
    backward: Any = None


_SHARE_KEPT: ComparedQuantity = "share of gradients kept back"
_AFTER = "after {made} steps with zero gradients"
_NEVER_SENT = "the kept remainder{what} is not sent later: {made} steps with zero gradients sent none of it"
_NOT_YET_SENT = (
    "it cannot be seen whether the kept remainder{what} is sent later: {made} steps with zero gradients sent "
    "none of it, nor most of the rest: send more in each step, or scale smaller parts"
)
_MORE_THAN_ALL = "the kept remainder{what} is {share:.4g} times as large as all gradients"
_GROWS = (
    f"the kept remainder{{what}} does not shrink as it is sent: {{share:.4g}} times as much is left {_AFTER}"
)
_TOO_SLOW = (
    f"the kept remainder{{what}} is sent too slowly: {{share:.1%}} of it is left {_AFTER}: send more in each "
    "step"
)
_OTHERS_SENT = f"the remainder is not conserved: what was sent and what is left do not add up to it {_AFTER}"


@dataclass(slots=True)
class _Kept:
    """Gradients not sent yet, to compare with what is unsent after steps with zero gradients."""

    comparer: Comparer
    replica: CompensatedReplica
    reference: torch.nn.Module
    whole: Tensors
    """Sum of the true gradients over the steps."""
    own: Tensors
    """Part of the sum that this rank has not sent."""
    mean: Tensors
    """Mean over ranks of the parts that ranks have not sent."""
    parts: dict[str, set[str]] = field(init=False)
    """Names of the parameters of each kind, "vectors" or "matrices". A kind without unsent gradients is left out."""

    def __post_init__(self) -> None:
        vectors = {name for name, value in self.whole.items() if value.dim() < 2}
        self.parts = {"vectors": vectors, "matrices": self.whole.keys() - vectors}
        shares = self.shares(self.mean, self.whole)
        self.parts = {what: names for what, names in self.parts.items() if shares[what] > 0}

    def remaining(self, sent: Tensors, left: Tensors) -> tuple[list[str], dict[str, float]]:
        """Return which of "vectors" and "matrices" were hardly sent, and what share of each is left.

        Both are the same on all ranks. `left` has the mean over ranks of what is left.
        """
        own, allowed = kept_of(self.replica, self.whole), self.comparer.tolerances.gradient
        changes = {name: own[name] - value for name, value in self.own.items()}

        def idle(names: Collection[str]) -> bool:
            if _share(self.mean, self.whole, names) <= allowed:
                return False
            if _share(sent, self.mean, names) < LEAST_SENT:
                return True
            # PowerSGD's ranks keep their difference from the mean for good, and send parts of the mean only.
            held = _share(self.own, self.whole, names) > allowed
            return held and max(_share(changes, each, names) for each in (self.own, sent)) < LEAST_SENT

        idles = [float(idle(names)) for names in self.parts.values()]
        shares = [_share(left, self.mean, names) for names in self.parts.values()]
        found = self.comparer.prover.all_agreed([*idles, *shares])  # in one message: each costs a millisecond
        still = [what for what, is_idle in zip(self.parts, found, strict=False) if is_idle]
        return still, dict(zip(self.parts, found[len(idles) :], strict=True))

    def left(self) -> Tensors:
        return self.comparer.prover.average(kept_of(self.replica, self.whole))

    def shares(self, kept: Tensors, whole: Tensors) -> dict[str, float]:
        shares = [_share(kept, whole, names) for names in self.parts.values()]
        return dict(zip(self.parts, self.comparer.prover.all_agreed(shares), strict=True))

    def shares_of_ranks(self) -> dict[str, float]:
        """Return the unsent fraction of a rank's gradients, for vectors and for matrices.

        Norms are root mean squares over ranks, because averaged gradients may cancel.
        """
        gradients = self.comparer.one.gradient(self.reference, self.comparer.prover.rank)
        found: dict[str, float] = {}
        for what, names in self.parts.items():
            squares = {
                "kept": norm([self.own[name] for name in names]) ** 2,
                "whole": (norm([gradients[name] for name in names]) * COMPRESSED_STEPS) ** 2,
            }
            over_ranks = self.comparer.prover.average(squares)
            found[what] = math.sqrt(float(over_ranks["kept"]) / (float(over_ranks["whole"]) or 1.0))
        return found

    def named(self, parts: Collection[str]) -> str:
        return "" if len(parts) == len(self.parts) else f" of {' and '.join(parts)}"


def _share_kept(kept: _Kept, step: Callable[[], Tensors], sent: Tensors | None) -> Proof:
    """Check that part of the gradients was sent and the rest will be, for matrices and for vectors.

    Sent and unsent parts always add up to the true gradients, so their sum alone proves nothing. `sent` is the sum of
    `COMPRESSED_STEPS` further steps with zero gradients; None if such steps are impossible.
    """
    comparer, compared = kept.comparer, _SHARE_KEPT
    tolerance = comparer.tolerances.gradient
    shares = kept.shares(kept.mean, kept.whole)
    largest = max(shares.values(), default=0.0)
    if sent is None:
        return comparer.proof(compared, largest, MOST_KEPT)
    of_ranks = kept.shares_of_ranks() if largest > 1 + tolerance else {}
    if more := {what: share for what, share in of_ranks.items() if share > 1 + tolerance}:
        note = _MORE_THAN_ALL.format(what=kept.named(more), share=max(more.values()))
        return replace(comparer.proof(compared, largest, MOST_KEPT), note=note)
    allowed = {what: MOST_LEFT if share > MOST_KEPT else 1 - LEAST_SENT for what, share in shares.items()}
    unsent, made = list(kept.parts), COMPRESSED_STEPS
    while True:
        left = kept.left()
        # A hook with alternating signs takes back what it sent.
        still, remains = kept.remaining(sent, left)
        unsent = [what for what in unsent if what in still]
        held = {
            what: remains[what]
            for what, share in shares.items()
            if share > tolerance and remains[what] > allowed[what]
        }
        grown = max(remains.values(), default=0.0) > MOST_GROWN
        if not (unsent or held) or grown or made >= MOST_SENDING:
            break
        more_sent = _sent_of_kept(comparer, kept.replica, step, 1) or {}
        sent = {name: value + more_sent.get(name, 0.0) for name, value in sent.items()}
        made += 1
    others = [share for what, share in kept.shares(left, kept.whole).items() if what not in unsent]
    late = max(others, default=0.0) <= SENT_ENOUGH
    sums = {name: value - kept.mean[name] + sent[name] + left[name] for name, value in kept.whole.items()}
    if not grown and gap(comparer, sums, kept.whole) > tolerance:
        fault, seen = _OTHERS_SENT.format(made=made), True
    else:
        fault, seen = _fault_of_sending(kept, unsent, held, late=late, made=made)
    if not fault:
        return comparer.proof(compared, largest, max(largest, MOST_KEPT))
    if not seen:
        return not_compared(compared, comparer.name, fault)
    return replace(comparer.proof(compared, max(largest, 1.0), MOST_KEPT), note=fault)


def _fault_of_sending(
    kept: _Kept, unsent: list[str], held: dict[str, float], *, late: bool, made: int
) -> tuple[str, bool]:
    """Return why gradients may never be sent (`""` if they will be), and whether the strategy is at fault.

    `unsent` lists the kinds of which `made` steps sent nothing. If `late`, most of the other kind was sent. `held` maps
    each kind with too many unsent gradients to the unsent fraction.
    """
    if unsent and late:
        return _NEVER_SENT.format(what=kept.named(unsent), made=made), True
    grown = {what: share for what, share in held.items() if what not in unsent and share > NOT_SHRUNK}
    if grown:
        return _GROWS.format(what=kept.named(grown), share=max(grown.values()), made=made), True
    if unsent:
        return _NOT_YET_SENT.format(what=kept.named(unsent), made=made), False
    if held:
        return _TOO_SLOW.format(what=kept.named(held), share=max(held.values()), made=made), False
    return "", False


def _sent_of_kept(
    comparer: Comparer, replica: CompensatedReplica, step: Callable[[], Tensors], count: int
) -> Tensors | None:
    """Return the sum sent in `count` steps with zero gradients; None if such steps are impossible.

    The strategy can then only send gradients left from earlier steps.
    """
    zeroed: list[None] = []

    def zero(gradient: torch.Tensor) -> torch.Tensor:
        zeroed.append(None)
        return torch.zeros_like(gradient)

    parameters = [each for each in replica.job.model.parameters() if each.requires_grad]
    handles = [each.register_hook(zero) for each in parameters]  # type: ignore[no-untyped-call]
    try:
        sent = mean(step() for _ in range(count))
    finally:
        for handle in handles:
            handle.remove()
    if comparer.prover.agreed(float(not zeroed)):
        return None
    return {name: value * count for name, value in sent.items()}


def _share(kept: Tensors, whole: Tensors, names: Collection[str]) -> float:
    """Return the norm of the named tensors in `kept` divided by theirs in `whole`; 0 if that is 0."""
    of_whole = float(norm([whole[name] for name in names])) if names else 0.0
    return float(norm([kept[name] for name in names])) / of_whole if of_whole > 0 else 0.0


def _averaged(
    comparer: Comparer, replica: Replica, reference: torch.nn.Module, batch: Any
) -> Iterator[Proof]:
    """Check a strategy whose ranks train separately and average parameters periodically.

    Steps up to the second averaging are compared with separate models in one process.
    """
    assert isinstance(replica, PeriodicReplica)
    prover, training = comparer.prover, comparer.training
    before, apart = trained(reference), _TrainedApart(comparer, reference)
    made: list[tuple[Sequence[Sequence[int]], bool, set[str]]] = []
    averagings = 0
    for step in range(MOST_STEPS_APART):
        groups, averages = averaging_of(replica, step, training.case.world_size)
        comparer.one.seed(prover.rank)
        comparer.step(replica, batch)
        without = replica.unused()
        comparer.update_replica(replica)
        made.append((groups if not prover.gathers else (), averages, without))
        apart.step(*made[-1])
        averagings += averages
        if averagings == 2:
            break
    else:
        raise ValueError(f"no two averagings within {MOST_STEPS_APART} steps: give a shorter period")
    after = replica.own_parameters()
    if prover.gathers or comparer.faults.update_exchanges():
        what = "loss" if prover.gathers else "update"
        note = (
            f"the {what} exchanges values between ranks that train apart: one process cannot redo their steps"
        )
        yield not_compared("parameters, averaged", comparer.name, note)
    else:

        def again(model: torch.nn.Module) -> Tensors:
            others = _TrainedApart(comparer, model)
            for step_made in made:
                others.step(*step_made)
            return others.parameters

        yield comparer.change("parameters, averaged", before, after, apart.parameters, train=again)
    if prover.processes > 1:
        equal = all_equal(checksum(replica.job.model), prover.control, prover.processes)
        yield comparer.proof("final replicas", 0.0 if equal else math.inf, 0.0)


class _TrainedApart:
    def __init__(self, comparer: Comparer, model: torch.nn.Module) -> None:
        self._comparer = comparer
        self._models = [comparer.one.copied(model) for _ in comparer.shards]
        self._optimizers = [comparer.training.make_optimizer(each.parameters()) for each in self._models]

    @property
    def parameters(self) -> Tensors:
        return trained(self._models[self._comparer.prover.rank])

    def step(self, groups: Sequence[Sequence[int]], averages: bool, without: Collection[str]) -> None:
        """Average gradients within each group of ranks and then, if `averages`, all parameters.

        Parameters in `without` are left out if no rank of the group gives them a gradient.
        """
        one, models = self._comparer.one, self._models
        for group in groups:
            averaged, reached = one.mean_reached((models[rank], rank) for rank in group)
            gradient = {
                name: value for name, value in averaged.items() if name in reached or name not in without
            }
            for rank in group:
                one.update(models[rank], gradient, self._optimizers[rank], rank)
        if averages:
            state = mean([trained(model) for model in models])
            for model in models:
                _load(model, state)


def _ordered(comparer: Comparer, replica: Replica, reference: torch.nn.Module, batch: Any) -> Iterator[Proof]:
    """Check a strategy whose server applies gradients one at a time, by replaying the server's log in one process.

    The log names the parameters' version for each gradient. Workers are compared after their last update.
    """
    assert isinstance(replica, OrderedReplica)
    prover, training = comparer.prover, comparer.training
    draws = comparer.model.draws
    for _ in range(FINAL_STEPS):
        comparer.step(replica, batch)
        comparer.update_replica(replica)
        prover.on_step()
    updates = log_of(replica) if prover.rank == 0 else []
    if prover.processes > 1:
        updates = gather_values(updates, read_log, prover.group)[0]
    if draws:
        note = "the model draws random numbers, which differ when its log is replayed: not comparable"
        yield not_compared("parameters, updates in the server's order", comparer.name, note)
        return
    first = training.case.world_size - len(comparer.shards)
    each_once = sorted(rank for rank, _ in updates) == sorted(
        rank for rank in range(first, training.case.world_size) for _ in range(FINAL_STEPS)
    )
    if not each_once or any(version > number for number, (_, version) in enumerate(updates)):
        yield comparer.proof("parameters, updates in the server's order", math.inf)
        return
    before = trained(reference)
    own = max(
        (number for number, (rank, _) in enumerate(updates, start=1) if rank == prover.rank),
        default=len(updates),
    )

    def replayed(current: torch.nn.Module) -> Tensors:
        other = comparer.one.copied(current)
        optimizer = training.make_optimizer(current.parameters())
        versions = {0: trained(current)}
        for number, (rank, version) in enumerate(updates, start=1):
            _load(other, versions[version])
            comparer.one.update(current, comparer.one.gradient(other, rank - first), optimizer)
            versions[number] = trained(current)
            needed = {own, number, *(later for _, later in updates[number:])}
            versions = {kept: values for kept, values in versions.items() if kept in needed}
        return versions[own]

    expected = replayed(reference)
    after = replica.own_parameters()
    yield comparer.change(
        "parameters, updates in the server's order", before, after, expected, train=replayed
    )


_CHECKS: dict[Promise, Callable[[Comparer, Replica, torch.nn.Module, Any], Iterator[Proof]]] = {
    "nothing": _nothing,
    "gradients": _gradients,
    "delayed": _delayed,
    "averaged": _averaged,
    "ordered": _ordered,
}


def _load(model: torch.nn.Module, values: Tensors) -> None:
    for name, parameter in model.named_parameters():
        if name in values:
            parameter.detach().copy_(values[name])
