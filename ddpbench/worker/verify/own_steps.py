"""Prove strategies for classes that make their own training step, by replicas in one process that train in lockstep."""

from __future__ import annotations

import hashlib
import math
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpbench.causes import exception_words
from ddpbench.measure.recorder import NullRecorder
from ddpbench.records import ComparedQuantity, Proof
from ddpbench.strategies import Replica
from ddpbench.strategies.own_step import OwnStep, around_backward, each_part
from ddpbench.strategies.threaded_module import ThreadedModule
from ddpbench.strategies.trees import cast, copied
from ddpbench.units import counted, series_of
from ddpbench.worker.training.exchanges import noticing_exchanges
from ddpbench.worker.training.precision import FULL, entered_autocasts, widest
from ddpbench.worker.training.randomness import have_drawn, random_state, seed_all, set_random_state
from ddpbench.worker.training.training import Training, all_equal, checksum
from ddpbench.worker.training.types import NumberTypes, compared_numbers, names_of
from ddpbench.worker.verify.comparing import UNCHANGED, Comparer, check_trained, not_compared
from ddpbench.worker.verify.faults import NOT_REPEATED, UNSEEDED, by_rank
from ddpbench.worker.verify.one_process import ComparingRank, OneProcess
from ddpbench.worker.verify.optimizers import in_words
from ddpbench.worker.verify.outside_state import OutsideState, outside_words, owner_of
from ddpbench.worker.verify.refusals import waits_for
from ddpbench.worker.verify.tolerances import CHANGE_TOLERANCES
from ddpbench.worker.verify.values import Tensors, has_batch_statistics, norm, thaw, trained
from ddpbench.worker.verify.written import changed_since, late_sentence, same

STEPS = 3
UPDATES = 2
"""Least number of updates by each optimizer, because Adam's first update depends only on the signs of a gradient."""
MOST_STEPS = 64
"""Limit on the number of steps, which may exceed `STEPS` until every optimizer has made `UPDATES` updates. For example,
a network may be updated only in every fifth step.
"""


def prove_own_steps(prover: ComparingRank, batch: Any, shards: Sequence[Any]) -> Iterator[Proof]:
    """Compare this rank's parameters after some steps with the parameters of lockstep replicas; yield proofs.

    The reference has one replica per shard in this process, or trains on the whole batch if the strategy does. After
    each backward pass, the replicas' gradients are averaged. This defines data parallelism for any step, for example
    one that clips or accumulates gradients.
    """
    parts = shards
    if prover.training.strategy.one_process:
        shards = [batch]
    training = prover.training
    for numbers in compared_numbers(training.dtype, training.given_types):
        own, dealt = ([cast(shard, numbers.cast) for shard in each] for each in (shards, parts))
        try:
            yield from _compared(prover, numbers, cast(batch, numbers.cast), own, dealt)
        except _TypeUnfitError as problem:
            given = series_of(names_of(training.given_types))
            note = f"the step computes in {given} only, so float64 is not compared ({problem})"
            prover.proves_double = False
            yield not_compared("parameters, same samples", numbers.name, note)


def _unrepeatable(
    prover: ComparingRank, numbers: NumberTypes, shards: Sequence[Any], before: Tensors, expected: Tensors
) -> str:
    """Return why the lockstep replicas cannot be a reference; `""` if repeating them gives equal parameters.

    A cause found in one number type is kept for the next type, where results may agree by chance.
    """
    if prover.unrepeatable:
        return prover.unrepeatable
    outside = OutsideState(owner_of(prover.training, prover.training.fresh_model()))
    again = Lockstep(prover.training, numbers, shards, prover.on_step)
    again.run()
    changed = outside.changed()
    names = expected.keys() & before.keys()
    moved = norm([expected[name] - before[name] for name in names])

    def apart(other: Tensors, one: Tensors = expected) -> float:
        return float(norm([other[name] - one[name] for name in names]) / moved) if moved else 0.0

    gap = apart(again.parameters)
    allowed = CHANGE_TOLERANCES.get(numbers.narrowest, CHANGE_TOLERANCES[torch.float32])
    if prover.agreed(gap) > allowed:
        why = NOT_REPEATED
        if prover.agreed(float(bool(changed))):
            outside.restore()
            once_more = Lockstep(prover.training, numbers, shards, prover.on_step)
            once_more.run()
            if prover.agreed(apart(once_more.parameters, again.parameters)) <= allowed:
                why = outside_words(changed)
        prover.unrepeatable = (
            f"the step gives different parameters from the same state, batch and seeds: it {why}"
        )
    elif prover.agreed(apart(prover.average(expected))) > allowed:
        prover.unrepeatable = f"the step {by_rank('parameters')}"
    return prover.unrepeatable


def _how_bad(proof: Proof) -> tuple[bool, bool, float]:
    return not proof.passed, bool(proof.note), proof.error


class _TypeUnfitError(Exception):
    """The step cannot run in this number type."""


def _compared(
    prover: ComparingRank, numbers: NumberTypes, batch: Any, shards: Sequence[Any], parts: Sequence[Any]
) -> Iterator[Proof]:
    """Yield the proofs in one number type; the reference trains on `shards`, the strategy on `parts`."""
    training = prover.training
    with entered_autocasts() as autocasts:
        lockstep = _lockstep(prover, numbers, shards)
    exchanges = prover.processes > 1 and bool(
        prover.agreed(float(lockstep is not None and lockstep.exchanges))
    )
    expected = lockstep.parameters if lockstep is not None else None
    own = widest(autocasts) if not numbers.is_double else ""
    comparer = Comparer(prover, numbers, FULL, shards, own)
    model = training.fresh_model(numbers.cast, FULL)
    check_trained(prover, model)
    initial = comparer.explained(_alike(comparer, "initial state", model))
    yield initial
    if not initial.passed and initial.note:
        return
    before = trained(model)
    if lockstep is not None and (unequal := _of_counts(prover, numbers, shards, lockstep, before)):
        yield _explained(prover, comparer.proof("parameters, same samples", math.inf), unequal)
        return
    distributed = dist.is_initialized() and training.strategy.uses_backend
    replica = training.replica(model, NullRecorder(), distributed=distributed, precision=FULL)
    comparer.allow_for(replica)
    seed_all(training.case.seed + 1 + prover.rank)
    replica.own_step(copied(batch))  # makes the strategy wrap the model
    prover.on_step()
    wrappers = _wrappers_of(replica)
    first = _values_of(model, before) if wrappers else {}
    with _called(wrappers) as called, _counted() as backwards:
        for _ in range(1, lockstep.made if lockstep is not None else STEPS):
            replica.own_step(copied(batch))
            prover.on_step()
    thaw(model, before)
    after = replica.own_parameters()
    around = _is_gone_around(prover, called, first, model)
    late = late_sentence([name.removeprefix("network.") for name in after if name not in before])
    note = _EXCHANGES if exchanges else ""
    apart = _apart(prover, numbers, shards, lockstep) if not exchanges else ""
    note = note or apart or _why_not(prover, model, numbers, shards, expected)
    if around:
        fault = _AROUND.format(strategy=training.case.strategy)
        yield _explained(prover, comparer.proof("parameters, same samples", math.inf), fault)
    elif apart == _OF_ITS_SAMPLES and not training.strategy.replicas_equal:
        yield _explained(prover, comparer.proof("parameters, same samples", math.inf), apart)
    elif note:
        yield not_compared("parameters, same samples", comparer.name, note)
    elif lockstep is not None:
        proof = _same_samples(comparer, parts, lockstep, before, after, late=late)
        if not proof.passed:
            proof = _examined(comparer, proof, lockstep, _repeated(called, backwards) or late)
        yield _explained(prover, _unless_by_rank(comparer, proof, lockstep), late)
    if training.strategy.replicas_equal and prover.processes > 1:
        final = _alike(comparer, "final replicas", model)
        yield _explained(prover, final, apart or late or ("" if exchanges else _differing(prover, lockstep)))
    replica.close()


def _alike(comparer: Comparer, compared: ComparedQuantity, model: torch.nn.Module) -> Proof:
    equal = all_equal(checksum(model), comparer.prover.control, comparer.prover.processes)
    return comparer.proof(compared, 0.0 if equal else math.inf, 0.0)


def _same_samples(
    comparer: Comparer,
    parts: Sequence[Any],
    lockstep: Lockstep,
    before: Tensors,
    after: Tensors,
    *,
    late: str,
) -> Proof:
    prover, numbers = comparer.prover, comparer.numbers

    def repeated(model: torch.nn.Module, shards: Sequence[Any], sends: bool) -> Tensors:
        again = Lockstep(prover.training, numbers, shards, prover.on_step, sends=sends, one=comparer.one)
        again.run()
        return again.parameters

    def fault_of(_: Proof) -> str:
        return _unrepeatable(prover, numbers, comparer.shards, before, lockstep.parameters)

    def held(expected: Tensors, shards: Sequence[Any], *, sends: bool = False) -> Proof:
        train = partial(repeated, shards=shards, sends=sends)
        proofs = []
        # Separately for each optimizer, because a large network would hide an error in a small one.
        for names, stepped in zip(lockstep.updated_together, lockstep.stepped, strict=True):
            first, own, wanted = (
                {name: one[name] for name in names & one.keys()} for one in (before, after, expected)
            )
            why = UNCHANGED if stepped else _NO_UPDATES.format(made=lockstep.made)
            compared: ComparedQuantity = "parameters, same samples"
            proofs.append(
                comparer.change(compared, first, own, wanted, unchanged=why, train=train, fault=fault_of)
            )
        return max(proofs, key=_how_bad)

    expected = lockstep.parameters
    proof = held(expected, comparer.shards)
    if not proof.passed and (fault := _unrepeatable(prover, numbers, comparer.shards, before, expected)):
        proof = not_compared(proof.compared, comparer.name, fault)
    if not proof.passed and (sent := _with_buffers_sent(prover, numbers, parts)) is not None:
        proof = (
            held(sent, parts, sends=True)
            if prover.processes > 1
            else not_compared(proof.compared, comparer.name, _STATE)
        )
        proof = replace(proof, note=_SENT) if proof.passed and not proof.note else proof
    comparer.check_lost(proof)
    # All ranks know of parameters that became trainable late on any rank.
    lone = not proof.passed and _each_alone(prover, numbers, parts, before, after)
    return replace(proof, note=_NOT_AVERAGED) if lone and not late else proof


def _explained(prover: ComparingRank, proof: Proof, fault: str) -> Proof:
    if proof.passed or not fault:
        return proof
    prover.blame(fault)
    return replace(proof, note=fault)


_DRAWS_AFTER_BACKWARD = (
    "the step makes different updates on each rank from the same gradients, because it draws random numbers "
    "after backward(): draw them from a generator that is seeded alike on all ranks"
)
_OF_ITS_SAMPLES = (
    "the step makes different updates on each rank from the same gradients, because it computes with its rank's "
    "samples after backward(), which no strategy averages"
)
_UNEQUAL_COUNTS = (
    "the step calls backward() or an optimizer more often on one rank than on another, from the same state, "
    "batch and seeds: it reads RANK, or something else that differs, and ranks would wait for one another"
)
_UNSEEDED_AFTER_BACKWARD = (
    f"the step makes different updates on each rank from the same gradients: it {UNSEEDED}"
)


def _unless_by_rank(comparer: Comparer, proof: Proof, lockstep: Lockstep) -> Proof:
    """Return a passed proof as not compared if lockstep replicas differ between ranks.

    For strategies whose ranks hold only parts of the parameters.
    """
    if not proof.passed or proof.note or comparer.training.strategy.replicas_equal:
        return proof
    fault = _differing(comparer.prover, lockstep)
    return not_compared(proof.compared, comparer.name, fault) if fault else proof


def _examined(comparer: Comparer, proof: Proof, lockstep: Lockstep, fault: str) -> Proof:
    """Explain a failed proof by the class's `fault`, or mark it not compared if other roundings explain it.

    Raises:
        RuntimeError: steps leave out parameters whose gradients DDP waits for; raised on all ranks.
    """
    prover = comparer.prover
    waits = waits_for(prover.training, [*dict.fromkeys(lockstep.left_out)]) if lockstep.left_out else ""
    if prover.agreed(float(bool(waits))):
        raise RuntimeError(waits or "see the other ranks")
    if prover.agreed(float(bool(fault or proof.note))):
        return replace(proof, note=fault or proof.note)
    note = comparer.failures.note_on_rounding(proof)
    return not_compared(proof.compared, comparer.name, note) if note else proof


def _differing(prover: ComparingRank, lockstep: Lockstep | None) -> str:
    """Say that ranks' lockstep replicas end with different parameters, or return `""`.

    All ranks must call this function together.
    """
    if lockstep is None:
        return ""
    alike = all_equal(lockstep.checksum, prover.control, prover.processes)
    return "" if alike else f"the step {by_rank('parameters')}"


def _of_counts(
    prover: ComparingRank, numbers: NumberTypes, shards: Sequence[Any], lockstep: Lockstep, before: Tensors
) -> str:
    """Return why unequal numbers of passes or updates would make ranks deadlock; `""` if they would not.

    All ranks must call this function together.
    """
    if not all_equal(lockstep.counts, prover.control, prover.processes):
        fault = _unrepeatable(prover, numbers, shards, before, lockstep.parameters)
        return fault if fault not in ("", f"the step {by_rank('parameters')}") else _UNEQUAL_COUNTS
    if prover.agreed(float(not lockstep.updates_alike)):
        return _apart(prover, numbers, shards, lockstep)
    return ""


def _apart(
    prover: ComparingRank, numbers: NumberTypes, shards: Sequence[Any], lockstep: Lockstep | None
) -> str:
    if not prover.agreed(float(lockstep is not None and not lockstep.are_equal)):
        return ""
    same_samples = [shards[0]] * len(shards)
    outside = OutsideState(owner_of(prover.training, prover.training.fresh_model()))
    for samples, fault in ((shards, _DRAWS_AFTER_BACKWARD), (same_samples, _OF_ITS_SAMPLES)):
        again = Lockstep(prover.training, numbers, samples, prover.on_step, alike=True)
        again.run()
        if not prover.agreed(float(not again.are_equal)):
            return fault
    if changed := outside.changed():
        where = in_words(changed)
        return (
            f"{_UNSEEDED_AFTER_BACKWARD}, or keeps state outside of the model ({where}): keep the state in your "
            "object"
        )
    return _UNSEEDED_AFTER_BACKWARD


_EXCHANGES = "the step exchanges values between ranks, which replicas in one process cannot do"
_NO_UPDATES = "in {made} steps step() called no optimizer: does a condition leave out the updates?"
_AROUND = (
    "step() trains without calling the module that it is given: `model.module`, or a module that was kept from "
    "model() or optimizer(), bypasses {strategy}"
)
_NOT_AVERAGED = (
    "gradients were not averaged: have step() call the module that it is given, outside of no_sync()"
)


def _repeated(called: Mapping[torch.nn.Module, int], backwards: Sequence[None]) -> str:
    """Say that DDP averages only some backward passes, as there are more than forward passes; else `""`."""
    forwards = sum(called.values())
    if len(backwards) <= forwards or not any(isinstance(each, DistributedDataParallel) for each in called):
        return ""
    return (
        f"step() calls backward() {len(backwards)} times after {counted(forwards, 'forward')}, but DDP averages "
        "gradients only in the first backward() after each forward: call the model before each backward(), or "
        "add up the losses"
    )


@contextmanager
def _counted() -> Iterator[list[None]]:
    seen: list[None] = []

    def noted(backward: Callable[[], None]) -> None:
        seen.append(None)
        backward()

    with around_backward(noted, (threading.get_ident(),)):
        yield seen


def _wrappers_of(replica: Replica) -> list[torch.nn.Module]:
    steps = [each for each in vars(replica).values() if isinstance(each, OwnStep)]
    kinds = (DistributedDataParallel, torch.nn.DataParallel, ThreadedModule)
    return [part for one in steps for part in one.network.modules() if isinstance(part, kinds)]


def _values_of(model: torch.nn.Module, names: Collection[str]) -> Tensors:
    return {name: each.detach().clone() for name, each in model.named_parameters() if name in names}


@contextmanager
def _called(wrappers: Sequence[torch.nn.Module]) -> Iterator[dict[torch.nn.Module, int]]:
    """Yield a dictionary that counts each module's calls with gradients enabled.

    A module called only with gradients disabled counts once: its step does not bypass the wrapper.
    """
    seen = dict.fromkeys(wrappers, 0)
    without: set[torch.nn.Module] = set()
    reached: set[int] = set()

    def note(module: torch.nn.Module, _: Any) -> None:
        seen[module] += torch.is_grad_enabled()
        without.add(module)

    hooks = [each.register_forward_pre_hook(note) for each in wrappers]
    hooks += [
        each.register_post_accumulate_grad_hook(lambda reaching: reached.add(id(reaching)))  # type: ignore[no-untyped-call]
        for wrapper in wrappers
        for each in wrapper.parameters()
        if each.requires_grad
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
        for module in without:
            if not seen[module] and reached.isdisjoint(id(each) for each in module.parameters()):
                seen[module] = 1


def _is_gone_around(
    prover: ComparingRank, called: Mapping[torch.nn.Module, int], before: Tensors, model: torch.nn.Module
) -> bool:
    """Return whether, on any rank, steps changed a module's parameters without a call of its wrapper.

    `before` has the parameters as they were when counting began.
    """
    if not called:  # this strategy doesn't wrap the model
        return False
    changed = set(changed_since(before, model))
    moved = {id(each) for name, each in model.named_parameters() if name in changed}
    left, taken = (
        {id(each) for wrapper, was in called.items() if bool(was) is wanted for each in wrapper.parameters()}
        for wanted in (False, True)
    )
    return bool(prover.agreed(float(bool(moved & (left - taken)))))


def _each_alone(
    prover: ComparingRank, numbers: NumberTypes, shards: Sequence[Any], before: Tensors, after: Tensors
) -> bool:
    if prover.processes < 2:
        return False
    ends = []
    try:
        for number, shard in enumerate(shards):
            found = Lockstep(prover.training, numbers, [shard], prover.on_step, seed=number)
            found.run()
            ends.append(found.parameters)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit):  # a step that works among others may fail alone
        ends.clear()
    allowed = CHANGE_TOLERANCES.get(numbers.narrowest, CHANGE_TOLERANCES[torch.float32])

    def is_of_one(name: str) -> bool:
        return any(
            float(norm([after[name] - end[name]])) <= allowed * float(norm([end[name] - before[name]]))
            for end in ends
            if name in end
        )

    return not prover.agreed(float(not all(is_of_one(name) for name in after.keys() & before.keys())))


def _lockstep(prover: ComparingRank, numbers: NumberTypes, shards: Sequence[Any]) -> Lockstep | None:
    """Return the lockstep replicas after their steps; None if the strategy promises nothing.

    Raises:
        _TypeUnfitError: a step fails in float64 on some rank, and may work in the class's own types.
        UnequalRanksError: the replicas' steps differ so much that ranks would deadlock.
    """
    training = prover.training
    if training.strategy.promise(training.options) == "nothing":
        return None
    problem, found = "", Lockstep(training, numbers, shards, prover.on_step)
    try:
        found.run()
    except (MemoryError, torch.OutOfMemoryError, UnequalRanksError):
        raise  # not due to the number type
    except (Exception, SystemExit) as error:
        if numbers.cast != torch.float64 or "allocate memory" in str(error):  # the CPU allocator's message
            raise
        traceback.print_exc()
        problem = exception_words(error)
    if prover.control.agree(int(bool(problem))):
        raise _TypeUnfitError(problem or "on another rank")
    return found


def _why_not(
    prover: ComparingRank,
    model: torch.nn.Module,
    numbers: NumberTypes,
    shards: Sequence[Any],
    expected: Tensors | None,
) -> str:
    training = prover.training
    if expected is None or not training.strategy.one_process or training.case.world_size == 1:
        return ""
    if has_batch_statistics(model):
        return "BatchNorm's statistics differ between shards, as they should: the whole batch is not compared"
    again = Lockstep(training, numbers, shards, prover.on_step, seed=1)
    again.run()
    other = again.parameters
    if again.drew or any(not same(other[name], expected[name]) for name in expected):
        return (
            "the step draws random numbers, and its replicas draw them in a different order: not comparable"
        )
    return ""


_SENT = (
    "the model computes with buffers that its forwards change: every replica has the first replica's buffers, "
    "which are sent before each forward"
)
_STATE = (
    "the model computes with buffers that its forwards change; for shards they should differ from those for the "
    "whole batch: not compared"
)


def _with_buffers_sent(prover: ComparingRank, numbers: NumberTypes, parts: Sequence[Any]) -> Tensors | None:
    """Return the parameters after steps in which all replicas get the first one's buffers.

    None if no replica computes with buffers that its samples change.
    """
    if len(parts) < 2:
        return None
    ends: list[Tensors] = []
    try:
        for sends in (False, True):
            found = Lockstep(prover.training, numbers, parts, prover.on_step, sends=sends)
            found.run()
            ends.append(found.parameters)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (
        Exception,
        SystemExit,
    ):  # replicas of parts of a batch may fail where one of the whole batch doesn't
        ends.clear()
    alike = not ends or all(same(ends[1][name], value) for name, value in ends[0].items())
    return None if prover.agreed(float(alike)) else ends[1]


class _SentBuffers:
    """Copies the first replica's buffers before each forward pass, as DDP does.

    Like DDP, it skips the copy if the previous forward pass recorded no gradients.
    """

    def __init__(self, replicas: Sequence[torch.nn.Module]) -> None:
        self._sent: list[list[torch.Tensor] | None] = []
        self._made = [0 for _ in replicas]
        self._due = [True for _ in replicas]
        for number, replica in enumerate(replicas):
            replica.register_forward_pre_hook(partial(self._begin, number))

    def _begin(self, number: int, module: torch.nn.Module, _inputs: Any) -> None:
        buffers = list(module.buffers())
        if number == 0:
            self._sent.append([each.detach().clone() for each in buffers] if self._due[0] else None)
        elif self._made[number] < len(self._sent):
            sent = self._sent[self._made[number]]
            with torch.no_grad():
                for mine, first in zip(buffers, sent or (), strict=False):
                    mine.copy_(first)
        self._made[number] += 1
        self._due[number] = torch.is_grad_enabled()


class Lockstep:
    """Replicas of a model in one process, one per shard, whose gradients are averaged after every backward pass.

    Each replica has a thread, of which one runs at a time, up to the end of its next backward pass. Each replica draws
    random numbers from its own generator states, with its rank's seed.
    """

    def __init__(
        self,
        training: Training,
        numbers: NumberTypes,
        shards: Sequence[Any],
        on_step: Callable[[], None],
        *,
        seed: int = 0,
        sends: bool = False,
        alike: bool = False,
        one: OneProcess | None = None,
    ) -> None:
        """Make the replicas: one model and its optimizers per shard.

        `seed` is added to the ranks' seeds, or to the first rank's for all if `alike`. If `sends`, all replicas get the
        first one's buffers before each forward pass. `on_step` is called after every step. `one` makes models and has
        the factor of gradients.
        """
        self._training, self._shards, self._on_step = training, shards, on_step
        self._models = [one.fresh() if one else training.fresh_model(numbers.cast, FULL) for _ in shards]
        self._factor = one.factor if one else 1.0
        if sends:
            for replicas in zip(*(_parts_of(model) for model in self._models), strict=True):
                _SentBuffers(replicas)
        self._optimizers: list[Any] = [training.make_optimizer(model.parameters()) for model in self._models]
        self._trained = trained(self._models[0]).keys()
        """Names of the parameters that are trainable at first; a step may freeze some."""
        names = {id(each): name for name, each in self._models[0].named_parameters()}
        together = [
            {names[id(each)] for group in one.param_groups for each in group["params"] if id(each) in names}
            for one in self._optimizers[0].all
        ]
        self.updated_together = [frozenset(own) for own in together]
        """For each optimizer, the names of its parameters."""
        self._waits_for = [[UPDATES for _ in self._optimizers[0].all] for _ in shards]
        """For each replica, the number of updates that each of its optimizers still has to make."""
        for number, optimizers in enumerate(self._optimizers):
            for index, each in enumerate(optimizers.all):
                each.register_step_post_hook(partial(_stepped, self._waits_for[number], index))
        self.made = 0
        """Number of steps that each replica makes."""
        self.exchanges = False
        """True if a step has communicated with other ranks."""
        kept = random_state()
        self._random = []
        for number in range(len(shards)):
            seed_all(training.case.seed + 1 + (0 if alike else number) + seed)
            self._random.append(random_state())
        self._begun = list(self._random)
        set_random_state(kept)
        self._unused_are_found = bool(getattr(training.options, "find_unused_parameters", False))
        self._turn, self._started = 0, False
        self._backwards = [0 for _ in shards]
        self.left_out: list[str] = []
        """Names of parameters that a backward pass did not reach, but which are in a module with reached parameters."""
        self._changed = threading.Condition()
        self._ended: set[int] = set()
        self._error: BaseException | None = None

    @property
    def parameters(self) -> Tensors:
        """Return the first replica's parameters, including those that its steps froze; all replicas should be equal."""
        return self._parameters_of(self._models[0])

    @property
    def stepped(self) -> list[bool]:
        """Return, for each optimizer, whether it has made an update in any replica."""
        return [min(waits) < UPDATES for waits in zip(*self._waits_for, strict=True)]

    @property
    def checksum(self) -> str:
        """Return a digest of the first replica's parameters."""
        return checksum(self._models[0])

    @property
    def drew(self) -> bool:
        """Return whether any replica has drawn random numbers."""
        return any(map(have_drawn, self._begun, self._random))

    @property
    def are_equal(self) -> bool:
        """Return whether all replicas have the same parameters."""
        first, *others = map(self._parameters_of, self._models)
        return all(same(other[name], value) for other in others for name, value in first.items())

    @property
    def updates_alike(self) -> bool:
        """Return whether all replicas' optimizers made the same numbers of updates."""
        return all(each == self._waits_for[0] for each in self._waits_for)

    @property
    def counts(self) -> str:
        """Return a digest of the numbers of steps, backward passes and updates, to compare between ranks."""
        numbers = (self.made, self._backwards, self._waits_for)
        return hashlib.sha256(repr(numbers).encode()).hexdigest()

    def _parameters_of(self, model: torch.nn.Module) -> Tensors:
        thaw(model, self._trained)
        return trained(model)

    def run(self) -> None:
        """Make `STEPS` steps or more, until every optimizer has made `UPDATES` updates, but at most `MOST_STEPS` steps.

        Raises:
            UnequalRanksError: the replicas made different numbers of backward passes, or reached different parameters.
        """
        kept = random_state()
        numbers: dict[int, int] = {}
        threads = [
            threading.Thread(target=self._train, args=(number,), name=f"replica-{number}", daemon=True)
            for number in range(len(self._models))
        ]

        def meet(backward: Callable[[], None]) -> None:
            number = numbers[threading.get_ident()]
            with _divided(self._models[number], self._factor):
                backward()
            self._pass_on(number)

        with around_backward(meet, numbers, self._factor), noticing_exchanges() as seen:
            for number, thread in enumerate(threads):
                thread.start()
                numbers[thread.ident or 0] = number
            with self._changed:
                self._turn = 0
                self._started = True
                self._changed.notify_all()
            for thread in threads:
                thread.join()
        self.exchanges = seen.found
        set_random_state(kept)
        if self._error is not None:
            raise self._error
        if len(set(self._backwards)) > 1:
            raise UnequalRanksError(_UNEVEN)

    def _train(self, number: int) -> None:
        training, model = self._training, self._models[number]
        network: Any = model.network
        try:
            self._wait(number)
            made = 0
            while self._makes_more(number, made):
                shard = copied(self._shards[number])
                training.workload.step(model, network, shard, self._optimizers[number].given)
                self._on_step()
                made += 1
        except _StoppedError:
            pass
        except BaseException as error:
            self._error = self._error or error
        finally:
            with self._changed:
                self._ended.add(number)
                self._random[number] = random_state()
                self._next(number)

    def _makes_more(self, number: int, made: int) -> bool:
        """Return whether a replica makes another step; the first replica decides for all."""
        if number == 0 and (made < STEPS or (max(self._waits_for[0]) > 0 and made < MOST_STEPS)):
            self.made = made + 1
        return made < self.made

    def _pass_on(self, number: int) -> None:
        """End a replica's turn after its backward pass; the last replica averages all gradients."""
        with self._changed:
            self._random[number] = random_state()
            self._backwards[number] += 1
            if self._ended:
                self._error = self._error or UnequalRanksError(_UNEVEN)
            elif number == len(self._models) - 1:
                self._average()
            self._next(number)
        self._wait(number)

    def _next(self, number: int) -> None:
        self._turn = (number + 1) % len(self._models)
        for _ in self._models:
            if self._turn not in self._ended:
                break
            self._turn = (self._turn + 1) % len(self._models)
        self._changed.notify_all()

    def _wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._started and (self._turn == number or self._error is not None)
            )
            if self._error is not None:
                raise _StoppedError
            set_random_state(self._random[number])

    def _average(self) -> None:
        missed = _reached_by_some(self._models)
        lacks_part = bool(missed) and _leaves_out_parts(self._models)
        if missed and (lacks_part or not self._unused_are_found):
            waits = "" if lacks_part else waits_for(self._training, missed)
            self._error = self._error or UnequalRanksError(waits or _UNLIKE_BACKWARDS)
            return
        self.left_out += _left_out_of(self._models[0], self._trained)
        for together in zip(*(model.parameters() for model in self._models), strict=True):
            gradients = [each.grad for each in together if each.grad is not None]
            if not gradients:
                continue
            whole = torch.stack(gradients).sum(0) / len(together)
            for each in together:
                each.grad = whole.clone()


_UNLIKE_BACKWARDS = (
    "backward() reaches parameters on one rank that it does not reach on another, so ranks would wait for one "
    "another: have every rank's loss reach the same parameters"
)
_UNEVEN = "the ranks' steps did not call backward() equally often, so ranks would wait for one another"


class UnequalRanksError(RuntimeError):
    """The ranks' steps differ so much that the ranks would deadlock."""


def _reached_by_some(replicas: Sequence[torch.nn.Module]) -> list[str]:
    models = [dict(model.named_parameters()) for model in replicas]
    return [
        name.removeprefix("network.")
        for name in models[0]
        if len({model[name].grad is None for model in models}) > 1
    ]


def _leaves_out_parts(replicas: Sequence[torch.nn.Module]) -> bool:
    together = zip(*(_parts_of(model) for model in replicas), strict=True)
    reached = [[any(each.grad is not None for each in part.parameters()) for part in one] for one in together]
    return any(len(set(one)) > 1 for one in reached)


def _parts_of(model: Any) -> list[torch.nn.Module]:
    parts: list[torch.nn.Module] = []

    def noted(part: torch.nn.Module) -> torch.nn.Module:
        parts.append(part)
        return part

    each_part(model.network, noted)
    return parts


def _stepped(waits_for: list[int], index: int, *_: Any) -> None:
    waits_for[index] -= 1


def _left_out_of(model: torch.nn.Module, trained_first: Collection[str]) -> list[str]:
    """Return the parameters that are frozen or without a gradient, in modules that have other gradients.

    A module is a part that strategies wrap separately. Only parameters in `trained_first` count.
    """
    names = {id(each): name for name, each in model.named_parameters()}
    left_out: list[str] = []
    for part in _parts_of(model):
        own = [each for each in part.parameters() if names[id(each)] in trained_first]
        left = [names[id(each)] for each in own if each.grad is None or not each.requires_grad]
        left_out += [name.removeprefix("network.") for name in left] if len(left) < len(own) else []
    return left_out


@contextmanager
def _divided(model: torch.nn.Module, factor: float) -> Iterator[None]:
    if factor == 1:
        yield
        return
    before = {name: each.grad for name, each in model.named_parameters()}
    for each in model.parameters():
        each.grad = None
    yield
    for name, each in model.named_parameters():
        own, earlier = each.grad, before.get(name)
        if own is not None:
            each.grad = own / factor if earlier is None else earlier + own / factor
        else:
            each.grad = earlier


class _StoppedError(Exception):
    """This replica stops because another replica has failed."""
