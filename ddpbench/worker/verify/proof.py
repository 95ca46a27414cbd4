"""Prove, before anything is timed, that a strategy computes the same as one process does on the same shards."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ddpbench.causes import exception_words
from ddpbench.measure.blocks import Control
from ddpbench.records import ComparedQuantity, Costs, Proof
from ddpbench.strategies import Promise
from ddpbench.strategies.base import CannotTrainError
from ddpbench.strategies.trees import cast, chunk, copied, map_tensors, tensors, undivided
from ddpbench.units import series_of
from ddpbench.worker.training.exchanges import noticing_exchanges
from ddpbench.worker.training.precision import FULL, PrecisionPolicy, entered_autocasts, widest
from ddpbench.worker.training.training import Training
from ddpbench.worker.training.types import compared_numbers, names_of
from ddpbench.worker.verify.comparing import Comparer, not_compared
from ddpbench.worker.verify.one_process import Drawn
from ddpbench.worker.verify.own_steps import prove_own_steps
from ddpbench.worker.verify.promises import FINAL_STEPS, compare, follows_updates
from ddpbench.worker.verify.sent_batches import gather_batches
from ddpbench.worker.verify.values import Tensors, dense
from ddpbench.workloads import is_import_path

_MOST_TOGETHER = 1 << 22
"""Largest number of elements in a message that combines several tensors. Sending each small tensor separately would
take most of a proof's time.
"""

_FIRST_COMPARED: dict[Promise, ComparedQuantity] = {
    "averaged": "parameters, averaged",
    "ordered": "parameters, updates in the server's order",
}
"""Decisive comparison for each promise that compares no gradients."""


class Prover:
    """Makes one rank's part of a case's proof, the comparison of a strategy with one process."""

    def __init__(self, training: Training, control: Control, on_step: Callable[[], None]) -> None:
        """Set up the proof. `on_step` is called after each forward and backward pass to show a sign of life."""
        self.training = training
        self.control = control
        self.on_step = on_step
        self.rank = training.place.rank
        self.processes = training.place.processes
        self.group = getattr(control, "group", None)
        self.gathers = self.packed = False
        self.sparse: set[str] = set()
        self._waits = False
        """True if the loss waits for other ranks, so that all ranks must compute it together."""
        self.proves_double = True
        """True if the case is also compared in float64; False once the model is known not to work in float64."""
        self.proved_in_double: set[str] = set()
        """Comparisons of changes that float64 has passed."""
        self.unrepeatable = ""
        self.fault_of_model = ""
        """Sentence on the fault of the model that made a comparison fail; empty if there is none."""

    def blame(self, fault: str) -> None:
        """Store the fault of the model that made a comparison fail."""
        self.fault_of_model = fault

    def run(self) -> Iterator[Proof | Costs]:
        """Yield the case's proofs one by one, float64 first, and then its costs. Every rank yields the same.

        float64 proves the algorithm, without autocast. The trained number types follow, under the case's autocast. TF32
        is off on GPUs, because it would round shards and the whole batch differently.
        """
        if self.training.device.type == "cuda":  # this process times nothing
            torch.backends.cudnn.allow_tf32 = False
            torch.set_float32_matmul_precision("highest")
        self.training.check_even(self.control)
        batches = self.training.batches()
        inputs, targets = copied(next(batches))
        self.packed = self.training.is_packed((inputs, targets))
        shards = self._shards((inputs, targets))
        self.gathers = self._exchanges(shards[0])
        if self.training.workload.owns_step:
            yield from prove_own_steps(self, inputs, [shard[0] for shard in shards])
            # Steps may differ, as with two networks in turn, so one step's operations don't represent the
            # others.
            yield Costs(flops_per_sample=None, dataset_samples=self.training.dataset_samples)
            return
        later = (
            [self._drawn(next(batches)) for _ in range(FINAL_STEPS - 1)]
            if _compares_later(self.training)
            else []
        )
        own = self._own_autocast(shards[0])
        every = compared_numbers(self.training.dtype, self.training.given_types)
        strategy, options = self.training.strategy, self.training.options
        if every[0].cast is not None and (
            reason := strategy.float64_reason(options) or self._no_float64(shards[0])
        ):
            self.proves_double = False
            left_out = every.pop(0)
            first_compared = _FIRST_COMPARED.get(strategy.promise(options), "gradients, same shards")
            yield not_compared(first_compared, left_out.name, reason)
        for numbers in every:
            precision = FULL if numbers.is_double else self.training.precision
            first = Drawn((inputs, targets), shards).cast(numbers.cast)
            # Autocast doesn't change float64.
            autocast = "" if numbers.is_double else own
            following = [drawn.cast(numbers.cast) for drawn in later]
            comparer = Comparer(self, numbers, precision, first.shards, autocast, later=following)
            yield from compare(comparer, first.own)
        yield Costs(
            flops_per_sample=self._flops(inputs, targets), dataset_samples=self.training.dataset_samples
        )

    def _drawn(self, batch: tuple[Any, Any]) -> Drawn:
        self.on_step()  # shows that a rank waiting for a slow loader is alive
        batch = copied(batch)
        return Drawn(batch, self._shards(batch))

    def _shards(self, batch: tuple[Any, Any]) -> list[Any]:
        """Return the parts of a batch that get separate mean losses; the same on every rank.

        Raises:
            ValueError: a part of the batch has no rank, or all ranks have the same samples; raised on all ranks.
            CannotTrainError: samples are packed into rows, so that the strategy cannot split a batch.
        """
        case, strategy = self.training.case, self.training.strategy
        shares = self._shares(batch)
        if self.processes > 1:
            _check_shares(self.training, shares)
        each = strategy.parts(case) // len(shares)
        accumulates = strategy.accumulated(self.training.options) > 1
        if self.packed and (each > 1 or accumulates):
            who = f"options.{case.strategy}.accumulate" if accumulates else case.strategy
            parts = "parts" if accumulates else "replicas"
            raise CannotTrainError(
                "its batches do not have their samples along the first dimension of their first tensor (does a "
                f"row pack several samples?), so {who} cannot divide a batch among its {parts}"
            )
        count = each * strategy.accumulated(self.training.options)
        if count > 1 and not self.training.workload.owns_step:
            self.training.undivided = undivided(chunk(shares[0], count))
        if self.processes > 1 and not strategy.whole_batches:
            return shares
        return [part for share in shares for part in chunk(share, each)]

    def _shares(self, batch: tuple[Any, Any]) -> list[Any]:
        """Return the different batches that ranks get in a step, or the only one if a single rank takes all."""
        takers = _takers(self.training) if self.processes > 1 else [0]
        if len(takers) == 1:
            return [batch]
        own, device = map_tensors(lambda value: value.detach().cpu(), batch), self.training.device
        gathered = gather_batches(own, self.group, device)  # shapes may differ, as with padded texts
        return [map_tensors(lambda value: value.to(device), gathered[rank]) for rank in takers]

    def _no_float64(self, shard: Any) -> str:
        if not is_import_path(self.training.case.workload):
            return ""
        problem = ""
        try:
            self.gradient(self.training.fresh_model(torch.float64, FULL), cast(shard, torch.float64), FULL)
        except (MemoryError, torch.OutOfMemoryError):
            raise  # not due to the number type
        except (Exception, SystemExit) as error:
            if "allocate memory" in str(error):  # the CPU allocator's message
                raise
            traceback.print_exc()
            problem = exception_words(error)
        if not self.control.agree(int(bool(problem))):
            return ""
        own = series_of(names_of(self.training.given_types))
        return f"the workload computes in {own} only, so float64 is not compared ({problem})"

    def _own_autocast(self, shard: Any) -> str:
        """Return the coarsest autocast type that a user's loss enters on any rank: bf16, fp16 or `""`."""
        if not is_import_path(self.training.case.workload) or self.training.precision.name != "full":
            return ""
        dtype = None if self.training.dtype is None else torch.float32
        inputs, targets = copied(cast(shard, dtype))
        with entered_autocasts() as seen:
            self.training.workload.loss(self.training.fresh_model(dtype, FULL)(inputs), targets)
        self.on_step()
        names = ("", "fp16", "bf16")  # the coarsest last
        return names[round(self.agreed(float(names.index(widest(seen)))))]

    def _exchanges(self, shard: Any) -> bool:
        training = self.training
        if self.processes == 1 or not is_import_path(training.case.workload) or training.workload.owns_step:
            return False
        with noticing_exchanges() as seen:
            self.gradient(training.fresh_model(precision=FULL), cast(shard, training.dtype), FULL)
        self._waits = bool(self.agreed(float(seen.waited)))
        return bool(self.agreed(float(seen.found)))

    def gradient(
        self,
        model: torch.nn.Module,
        shard: Any,
        precision: PrecisionPolicy,
        parts: int = 1,
        factor: float = 1.0,
    ) -> Tensors:
        """Return the gradient of one process's step by parameter name; zeros for parameters that took no part.

        If `parts` > 1, the shard is split, and the result is the mean of the parts' gradients, as with accumulation.
        The loss is multiplied by `factor`, and gradients are divided by it, which changes only their rounding.
        """
        model.zero_grad(set_to_none=True)
        loss_of = precision.loss(self.training.workload.loss)
        own = copied(shard)
        for inputs, targets in chunk(own, parts) if parts > 1 else [own]:
            loss = loss_of(model(inputs), targets)
            loss = loss / parts if parts > 1 else loss
            (loss * factor if factor != 1 else loss).backward()  # type: ignore[no-untyped-call]
            self.on_step()
        self.sparse |= {
            name for name, each in model.named_parameters() if each.grad is not None and each.grad.is_sparse
        }
        found = {
            name: torch.zeros_like(parameter)
            if parameter.grad is None
            else precision.true_gradient(dense(parameter.grad))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        return found if factor == 1 else {name: value / factor for name, value in found.items()}

    def agreed(self, value: float) -> float:
        """Return the largest of all ranks' values. All ranks must call this method together."""
        return self.all_agreed([value])[0]

    def all_agreed(self, values: Sequence[float]) -> list[float]:
        """Return, for each index, the largest of all ranks' values, exchanged in one message.

        All ranks must call this method together, with the same number of values.
        """
        if self.processes == 1 or not values:
            return list(values)
        largest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        return [float(each) for each in largest]

    def average(self, values: Tensors) -> Tensors:
        """Return the mean over ranks of each tensor, on every rank. All ranks must call this method together."""
        if self.processes == 1:
            return values
        averages: Tensors = {}
        for names in _together(values):
            total = torch.cat([values[name].detach().cpu().reshape(-1) for name in names])
            dist.all_reduce(total, group=self.group)
            parts = torch.split(total / self.processes, [values[name].numel() for name in names])
            for name, part in zip(names, parts, strict=True):
                averages[name] = part.reshape(values[name].shape).to(values[name].device)
        return averages

    def _flops(self, inputs: Any, targets: Any) -> float | None:
        """Return torch's count of operations per sample, forward and backward; None if not needed or countable.

        A whole batch is counted, because BatchNorm refuses a single sample.
        """
        if self.rank != 0 and not (self.gathers or self._waits):
            return None
        try:
            return self._count_flops(inputs, targets) / self.training.samples or None
        except (Exception, SystemExit):
            traceback.print_exc()
            return None

    def _count_flops(self, inputs: Any, targets: Any) -> float:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        training = self.training
        model = training.fresh_model(
            precision=FULL
        )  # the number of multiplications is the same in all precisions
        counter = FlopCounterMode(display=False)
        # The counter knows matrix products but not the CPU's fused attention, so attention is made to use
        # products.
        with sdpa_kernel(SDPBackend.MATH), counter:
            loss = training.workload.loss(model(cast(inputs, training.dtype)), cast(targets, training.dtype))
            loss.backward()  # type: ignore[no-untyped-call]
        return float(counter.get_total_flops())


def _together(values: Tensors) -> Iterator[list[str]]:
    """Yield successive names whose tensors share a type and fit into one message; large ones alone."""
    names: list[str] = []
    numbers = 0
    for name, value in values.items():
        if names and (value.dtype != values[names[0]].dtype or numbers + value.numel() > _MOST_TOGETHER):
            yield names
            names, numbers = [], 0
        names.append(name)
        numbers += value.numel()
    if names:
        yield names


def _compares_later(training: Training) -> bool:
    return training.strategy.promise(training.options) == "gradients" and follows_updates(training)


def _takers(training: Training) -> list[int]:
    """Return the first training rank that gets each separate batch.

    Raises:
        ValueError: the strategy assigns a batch to no rank.
    """
    case, strategy = training.case, training.strategy
    trainers = range(case.world_size - strategy.trainers(case.world_size), case.world_size)
    shares = {rank: strategy.dealt(case, rank) for rank in trainers}
    (count,) = {count for _, count in shares.values()}
    takers = {number: rank for rank, (number, _) in reversed(shares.items())}
    if takers.keys() != set(range(count)):
        raise ValueError(
            f"{case.strategy} divides a step's samples into {count} parts, but its ranks take only some "
            f"({', '.join(map(str, sorted(takers)))}): see its dealt()"
        )
    return [takers[number] for number in range(count)]


def _check_shares(training: Training, shares: Sequence[Any]) -> None:
    """Refuse equal batches, because an average of equal gradients proves nothing.

    Raises:
        ValueError: all batches are equal; raised on all ranks.
    """
    if not training.shards_itself or len(shares) == 1:
        return
    first, *others = [list(tensors(share)) for share in shares]
    if all(_equal(first, other) for other in others):
        who = "replicas" if training.strategy.whole_batches else "ranks"
        raise ValueError(
            f"all {len(shares)} {who} received the same batch: an iterable dataset or a loader must give each "
            "rank different data. Shard by the arguments of dataset(rank, world_size) or loader(rank, "
            "world_size, batch), or by RANK and WORLD_SIZE"
        )


def _equal(own: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(own) == len(other) and all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
