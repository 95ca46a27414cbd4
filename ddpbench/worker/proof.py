"""The proof before timing: a strategy's gradients against one process that runs the same shards."""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist

from ddpbench.measure.blocks import Control
from ddpbench.measure.recorder import NullRecorder
from ddpbench.records import Costs, Proof
from ddpbench.strategies.nested import chunk, concatenate, map_tensors, tensors
from ddpbench.worker.precision import FULL, Precision
from ddpbench.worker.training import Training, all_equal, checksum
from ddpbench.workloads import is_import_path

TOLERANCES: dict[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Allowed error of a gradient. float64 leaves room for nothing but another order of addition; float32 for
that order too, over the few hundred thousand terms of a reduction."""
SMALL_GRADIENT = 1e-3
"""A parameter's error is relative to its own gradient's norm, or to this share of the whole gradient's norm
where that is larger: a gradient that is zero in exact arithmetic (attention's key bias) is all rounding."""
AUTOCAST_ROUNDOFFS = 16
"""Under autocast a gradient may be wrong by so many unit roundoffs u of what it computes in: 2^-4 for bf16
(u = 2^-8), 2^-7 for fp16 (u = 2^-11). A step rounds every layer's outputs, slopes and gradients to u; a batch cut
up otherwise rounds other sums, independently, so that errors add up as a random walk: about u √(2L) for L layers,
and √n more where the gradients of n shards nearly cancel. 16 covers L = 32 at n = 4. A strategy that forgets to
average, or a rank, is wrong by a half or more."""
COMPRESSED_ROUNDOFFS = 8
"""Where gradients are sent in a narrower type of unit roundoff u: each rank's share is rounded to it, and so is each
of n - 1 partial sums, independently: about u √n, and more where shares nearly cancel. 8 covers n = 16 and a gap."""
AUTOCAST_SMALL_GRADIENT = 0.1
"""`SMALL_GRADIENT` under autocast, where what ought to vanish is rounding of that size."""
MOST_HALVINGS = 40
"""fp16: so often is the loss's scale halved until gradients are finite."""
FINAL_STEPS = 3
Comparison = Literal["initial state", "gradients, same shards", "gradients, whole batch", "final replicas"]


def relative_error(
    own: Sequence[torch.Tensor], reference: Sequence[torch.Tensor], small: float = SMALL_GRADIENT
) -> float:
    """The largest error over parameters, as `SMALL_GRADIENT` says; infinite if the shapes differ."""
    if [gradient.shape for gradient in own] != [gradient.shape for gradient in reference]:
        return float("inf")
    whole = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in reference]))
    worst = 0.0
    for mine, expected in zip(own, reference, strict=True):
        scale = torch.maximum(torch.linalg.vector_norm(expected.double()), small * whole)
        error = float(torch.linalg.vector_norm(mine.double() - expected.double()) / scale)
        worst = max(worst, error) if math.isfinite(error) else float("inf")
    return worst


def _cast(batch: Any, dtype: torch.dtype) -> Any:
    return map_tensors(lambda value: value.to(dtype) if value.is_floating_point() else value, batch)


def _not_compared(compared: Comparison, dtype: str, note: str) -> Proof:
    """Says that a comparison would mean nothing here, and why."""
    return Proof(compared=compared, dtype=dtype, error=0.0, tolerance=math.inf, passed=True, note=note)


def _has_batch_statistics(model: torch.nn.Module) -> bool:
    return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())


class Prover:
    """One rank's part in the proof of a case."""

    def __init__(self, training: Training, control: Control, on_step: Callable[[], None]) -> None:
        """`on_step` is called after every forward and backward: a sign of life."""
        self.training = training
        self.control = control
        self.on_step = on_step
        self.rank = training.place.rank
        self.processes = training.place.processes
        self.group = getattr(control, "group", None)

    def run(self) -> Iterator[Proof | Costs]:
        """The comparisons in turn, float64 first; every rank yields the same.

        float64 proves the algorithm, in full precision whatever the case's; float32 follows, under the
        case's autocast if it has one.
        """
        self.training.check_even(self.control)
        inputs, targets = next(self.training.batches())
        shards = self._shards((inputs, targets))
        self._check_shards(shards)
        dtypes = [torch.float64, torch.float32]
        if self.training.dtype not in dtypes:
            dtypes.append(self.training.dtype)
        if reason := self._no_float64(shards[0]):
            dtypes.remove(torch.float64)
            yield _not_compared("gradients, same shards", "float64", reason)
        for dtype in dtypes:
            precision = FULL if dtype == torch.float64 else self.training.precision
            comparison = _Comparer(self, dtype, precision, [_cast(shard, dtype) for shard in shards])
            yield from comparison.run(*_cast((inputs, targets), dtype))
        yield Costs(
            flops_per_sample=self._flops(inputs, targets), dataset_samples=self.training.dataset_samples
        )

    def _shards(self, batch: tuple[Any, Any]) -> list[Any]:
        """Every rank's batch, on every rank: a process that holds all replicas has them already."""
        if self.processes == 1:
            return chunk(batch, self.training.case.world_size)
        gathered: list[Any] = [None] * self.processes
        own = map_tensors(lambda value: value.detach().cpu(), batch)
        dist.all_gather_object(gathered, own, group=self.group)  # shapes may differ, as of padded texts
        return [map_tensors(lambda value: value.to(self.training.device), part) for part in gathered]

    def _check_shards(self, shards: Sequence[Any]) -> None:
        """Refuses ranks that were all given the same samples: an average of equal gradients proves nothing.

        Raises:
            ValueError: they were, on all ranks.
        """
        if not self.training.shards_itself or len(shards) == 1 or self.processes == 1:
            return
        first, *others = [list(tensors(shard)) for shard in shards]
        if all(_equal(first, other) for other in others):
            raise ValueError(
                f"all {len(shards)} ranks were given the same first batch, so that they would not train on different "
                "data: an iterable dataset or a loader has to shard by rank itself (RANK and WORLD_SIZE say whose "
                "share; dataset(rank, world_size) and loader(rank, world_size, batch) are told)"
            )

    def _no_float64(self, shard: Any) -> str:
        """Why a user's own workload cannot be computed in float64; empty if it can."""
        if not is_import_path(self.training.case.workload):
            return ""
        problem = ""
        try:
            self.gradient(self.training.fresh_model(torch.float64, FULL), _cast(shard, torch.float64), FULL)
        except (MemoryError, torch.OutOfMemoryError):
            raise  # says nothing of the number type
        except Exception as error:
            if "allocate memory" in str(error):  # how the CPU's allocator puts it
                raise
            traceback.print_exc()
            problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if not self.control.agree(int(bool(problem))):
            return ""
        return f"the workload computes in float32 only, so float64 is not compared ({problem})"

    def gradient(self, model: torch.nn.Module, shard: Any, precision: Precision) -> list[torch.Tensor]:
        """The gradient of one process's step, zero for parameters that took no part."""
        inputs, targets = shard
        model.zero_grad(set_to_none=True)
        loss = precision.loss(self.training.workload.loss)(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.on_step()
        return gradients_of(model, precision)

    def agreed(self, value: float) -> float:
        """The largest of all ranks' values."""
        if self.processes == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return float(values)

    def _flops(self, inputs: Any, targets: Any) -> float | None:
        """Floating-point operations of a sample's forward and backward, counted on rank 0 by torch.

        Of a whole batch, divided: BatchNorm refuses a single sample. None where torch cannot count them.
        """
        if self.rank != 0:
            return None
        try:
            return self._count_flops(inputs, targets) / self.training.samples or None
        except Exception:
            traceback.print_exc()
            return None

    def _count_flops(self, inputs: Any, targets: Any) -> float:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        training = self.training
        model = training.fresh_model(precision=FULL)  # how often something is multiplied is the same in all
        counter = FlopCounterMode(display=False)
        # The counter knows matrix products, and no fused attention of the CPU: have it as products.
        with sdpa_kernel(SDPBackend.MATH), counter:
            loss = training.workload.loss(
                model(_cast(inputs, training.dtype)), _cast(targets, training.dtype)
            )
            loss.backward()  # type: ignore[no-untyped-call]
        return float(counter.get_total_flops())


def _equal(own: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(own) == len(other) and all(torch.equal(a, b) for a, b in zip(own, other, strict=True))


def gradients_of(model: torch.nn.Module, precision: Precision) -> list[torch.Tensor]:
    """The model's gradients after a backward, without the loss's scale; zero where there is none."""
    return [
        torch.zeros_like(p) if p.grad is None else precision.true_gradient(p.grad)
        for p in model.parameters()
        if p.requires_grad
    ]


class _Comparer:
    """The comparisons in one number type and precision; `shards` are all ranks' batches."""

    def __init__(
        self, prover: Prover, dtype: torch.dtype, precision: Precision, shards: Sequence[Any]
    ) -> None:
        self._prover, self._dtype, self._precision, self._shards = prover, dtype, precision, shards
        name = str(dtype).removeprefix("torch.")
        self._name = name if precision.name == "full" else f"{name}, {precision.name} autocast"
        roundoff = precision.unit_roundoff
        self._tolerance = AUTOCAST_ROUNDOFFS * roundoff or TOLERANCES.get(dtype, 1e-2)
        self._small = AUTOCAST_SMALL_GRADIENT if roundoff else SMALL_GRADIENT

    def run(self, inputs: Any, targets: Any) -> Iterator[Proof]:
        """Trains a fresh model on this rank's batch, and holds it against one process."""
        prover, precision = self._prover, self._precision
        training, control, processes = prover.training, prover.control, prover.processes
        strategy = training.strategy
        model = training.fresh_model(self._dtype, precision)
        equal = all_equal(checksum(model), control, processes)
        yield self._proof("initial state", 0.0 if equal else math.inf, 0.0)
        reference = copy.deepcopy(model) if strategy.aggregates else None
        self._settle_scale(model, (inputs, targets))
        distributed = dist.is_initialized() and strategy.uses_backend
        replica = training.replica(model, NullRecorder(), distributed=distributed, precision=precision)
        if replica.unit_roundoff:
            self._tolerance = max(self._tolerance, COMPRESSED_ROUNDOFFS * replica.unit_roundoff)
            self._small = max(self._small, AUTOCAST_SMALL_GRADIENT)
        self._seed(prover.rank)
        replica.gradients_of(inputs, targets)
        prover.on_step()
        own = gradients_of(model, precision)
        if reference is not None:
            yield from self._against(reference, own, batch_statistics=_has_batch_statistics(model))
        if strategy.replicas_equal and processes > 1:
            precision.update(replica)
            for _ in range(FINAL_STEPS - 1):
                replica.gradients_of(inputs, targets)
                precision.update(replica)
                prover.on_step()
            equal = all_equal(checksum(model), control, processes)
            yield self._proof("final replicas", 0.0 if equal else math.inf, 0.0)
        replica.close()

    def _against(
        self, reference: torch.nn.Module, own: Sequence[torch.Tensor], *, batch_statistics: bool
    ) -> Iterator[Proof]:
        """The gradient of this rank's step, held against one process's over the same shards, and over all at once."""
        training = self._prover.training
        workload, shards = training.workload, self._shards
        draws = self._draws_random_numbers(reference)
        expected: list[torch.Tensor] | None = None
        if draws and training.strategy.one_process and training.case.world_size > 1:
            note = "the model draws random numbers, and its replicas share one generator: not comparable"
            yield _not_compared("gradients, same shards", self._name, note)
        else:
            expected = self._average(reference)
            error = relative_error(own, expected, self._small)
            yield self._proof("gradients, same shards", error, self._tolerance)
        note = ""
        if draws:
            note = "the model draws random numbers: other ones over the whole batch than over shards"
        elif workload.batch_statistics or batch_statistics:
            note = "BatchNorm's statistics differ over shards, rightly: the whole batch is not compared"
        else:
            try:
                batch = concatenate(shards)
            except ValueError as problem:
                note = f"the ranks' batches cannot be one, so the whole batch is not compared: {problem}"
        if note:
            yield _not_compared("gradients, whole batch", self._name, note)
            return
        whole = self._prover.gradient(reference, batch, self._precision)
        assert expected is not None
        gap = self._prover.agreed(relative_error(expected, whole, self._small))
        if workload.whole_batches and gap > self._tolerance:
            note = (
                "the loss is no mean over samples (one process's gradients over shards average to another one than "
                f"over the whole batch, by {gap:.1e}), as a mean over unequal numbers of words is not: data-parallel "
                "training then differs from one process's, whatever the strategy"
            )
            yield _not_compared("gradients, whole batch", self._name, note)
            return
        yield self._proof("gradients, whole batch", relative_error(own, whole, self._small), self._tolerance)

    def _settle_scale(self, model: torch.nn.Module, batch: Any) -> None:
        """Halves an fp16 loss's scale until this batch's gradients are finite on all ranks, as training would."""
        if self._precision.name != "fp16":
            return
        for _ in range(MOST_HALVINGS):
            gradient = self._prover.gradient(copy.deepcopy(model), batch, self._precision)
            infinite = any(not bool(torch.isfinite(part).all()) for part in gradient)
            if not self._prover.agreed(float(infinite)) or not self._precision.lower_scale():
                return

    def _draws_random_numbers(self, model: torch.nn.Module) -> bool:
        """Whether a step's gradient depends on the seed, as with dropout."""
        seen: list[list[torch.Tensor]] = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            # Of a copy: a forward may change buffers such as running statistics.
            seen.append(self._prover.gradient(copy.deepcopy(model), self._shards[0], self._precision))
        differs = relative_error(seen[0], seen[1]) > TOLERANCES[torch.float32]
        return bool(self._prover.control.agree(int(differs)))  # what is compared next, all ranks must compare

    def _seed(self, shard: int) -> None:
        torch.manual_seed(self._prover.training.case.seed + 1 + shard)

    def _average(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """The mean over shards of each shard's gradient, from the same state and seeds, in this process."""
        total: list[torch.Tensor] = []
        for number, shard in enumerate(self._shards):
            self._seed(number)
            gradient = self._prover.gradient(model, shard, self._precision)
            total = [a + b for a, b in zip(total, gradient, strict=True)] if total else gradient
        return [gradient / len(self._shards) for gradient in total]

    def _proof(self, compared: Comparison, error: float, tolerance: float) -> Proof:
        """The worst rank's error, which every rank learns."""
        worst = self._prover.agreed(error)
        return Proof(
            compared=compared, dtype=self._name, error=worst, tolerance=tolerance, passed=worst <= tolerance
        )
