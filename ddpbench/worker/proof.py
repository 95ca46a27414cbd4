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
from ddpbench.worker.training import Training, all_equal, checksum

TOLERANCES: dict[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Allowed error of a gradient. float64 leaves room for nothing but another order of addition; float32 for
that order too, over the few hundred thousand terms of a reduction."""
SMALL_GRADIENT = 1e-3
"""A parameter's error is relative to its own gradient's norm, or to this share of the whole gradient's norm
where that is larger: a gradient that is zero in exact arithmetic (attention's key bias) is all rounding."""
FINAL_STEPS = 3
Comparison = Literal["initial state", "gradients, same shards", "gradients, whole batch", "final replicas"]


def relative_error(own: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> float:
    """The largest error over parameters, as `SMALL_GRADIENT` says; infinite if the shapes differ."""
    if [gradient.shape for gradient in own] != [gradient.shape for gradient in reference]:
        return float("inf")
    whole = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in reference]))
    worst = 0.0
    for mine, expected in zip(own, reference, strict=True):
        scale = torch.maximum(torch.linalg.vector_norm(expected.double()), SMALL_GRADIENT * whole)
        error = float(torch.linalg.vector_norm(mine.double() - expected.double()) / scale)
        worst = max(worst, error) if math.isfinite(error) else float("inf")
    return worst


def _cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype) if value.is_floating_point() else value


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
        self._on_step = on_step
        self.rank = training.place.rank
        self.processes = training.place.processes
        self.group = getattr(control, "group", None)

    def run(self) -> Iterator[Proof | Costs]:
        """The comparisons in turn, float64 first; every rank yields the same."""
        inputs, targets = next(self.training.batches())
        dtypes = [torch.float64, torch.float32]
        if self.training.dtype not in dtypes:
            dtypes.append(self.training.dtype)
        for dtype in dtypes:
            yield from self._compare(dtype, _cast(inputs, dtype), _cast(targets, dtype))
        yield Costs(flops_per_sample=self._flops(inputs, targets))

    def _compare(self, dtype: torch.dtype, inputs: torch.Tensor, targets: torch.Tensor) -> Iterator[Proof]:
        training, strategy = self.training, self.training.strategy
        model = training.fresh_model(dtype)
        name = str(dtype).removeprefix("torch.")
        equal = all_equal(checksum(model), self.control, self.processes)
        yield self._proof("initial state", name, 0.0 if equal else float("inf"), 0.0)
        reference = copy.deepcopy(model) if strategy.aggregates else None
        distributed = dist.is_initialized() and strategy.uses_backend
        replica = training.replica(model, NullRecorder(), distributed=distributed)
        self._seed(self.rank)
        replica.gradients_of(inputs, targets)
        self._on_step()
        own = [
            torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for p in model.parameters()
            if p.requires_grad
        ]
        if reference is not None:
            shards = self._shards(inputs, targets)
            tolerance = TOLERANCES.get(dtype, 1e-2)
            draws = self._draws_random_numbers(reference, shards[0])
            if draws and strategy.one_process and training.case.world_size > 1:
                note = "the model draws random numbers, and its replicas share one generator: not comparable"
                yield _not_compared("gradients, same shards", name, note)
            else:
                expected = self._average(reference, shards)
                yield self._proof("gradients, same shards", name, relative_error(own, expected), tolerance)
            if draws:
                note = "the model draws random numbers: other ones over the whole batch than over shards"
                yield _not_compared("gradients, whole batch", name, note)
            elif training.workload.batch_statistics or _has_batch_statistics(model):
                note = "BatchNorm's statistics differ over shards, rightly: the whole batch is not compared"
                yield _not_compared("gradients, whole batch", name, note)
            else:
                inputs_of_all = torch.cat([shard[0] for shard in shards])
                targets_of_all = torch.cat([shard[1] for shard in shards])
                whole = self._gradient(reference, inputs_of_all, targets_of_all)
                yield self._proof("gradients, whole batch", name, relative_error(own, whole), tolerance)
        if strategy.replicas_equal and self.processes > 1:
            replica.apply()
            for _ in range(FINAL_STEPS - 1):
                replica.gradients_of(inputs, targets)
                replica.apply()
                self._on_step()
            equal = all_equal(checksum(model), self.control, self.processes)
            yield self._proof("final replicas", name, 0.0 if equal else float("inf"), 0.0)
        replica.close()

    def _gradient(self, model: torch.nn.Module, inputs: Any, targets: Any) -> list[torch.Tensor]:
        """The gradient of one process's step, zero for parameters that took no part."""
        model.zero_grad(set_to_none=True)
        loss = self.training.workload.loss(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._on_step()
        return [
            torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for p in model.parameters()
            if p.requires_grad
        ]

    def _draws_random_numbers(self, model: torch.nn.Module, shard: tuple[torch.Tensor, torch.Tensor]) -> bool:
        """Whether a step's gradient depends on the seed, as with dropout."""
        seen: list[list[torch.Tensor]] = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            # Of a copy: a forward may change buffers such as running statistics.
            seen.append(self._gradient(copy.deepcopy(model), *shard))
        differs = relative_error(*seen) > TOLERANCES[torch.float32]
        return bool(self.control.agree(int(differs)))  # what is compared next, all ranks must compare

    def _seed(self, shard: int) -> None:
        torch.manual_seed(self.training.case.seed + 1 + shard)

    def _shards(self, inputs: torch.Tensor, targets: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Every rank's batch, on every rank: a process that holds all replicas has them already."""
        if self.processes == 1:
            count = self.training.case.world_size
            return list(zip(inputs.chunk(count), targets.chunk(count), strict=True))
        gathered: list[list[torch.Tensor]] = []
        for value in (inputs, targets):
            own = value.detach().cpu().contiguous()
            parts = [torch.empty_like(own) for _ in range(self.processes)]
            dist.all_gather(parts, own, group=self.group)
            gathered.append([part.to(value.device) for part in parts])
        return list(zip(*gathered, strict=True))

    def _average(
        self, model: torch.nn.Module, shards: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> list[torch.Tensor]:
        """The mean over shards of each shard's gradient, from the same state and seeds, in this process."""
        total: list[torch.Tensor] = []
        for number, (inputs, targets) in enumerate(shards):
            self._seed(number)
            gradient = self._gradient(model, inputs, targets)
            total = [a + b for a, b in zip(total, gradient, strict=True)] if total else gradient
        return [gradient / len(shards) for gradient in total]

    def _proof(
        self,
        compared: Comparison,
        dtype: str,
        error: float,
        tolerance: float,
    ) -> Proof:
        """The worst rank's error, which every rank learns."""
        worst = error
        if self.processes > 1:
            value = torch.tensor([error], dtype=torch.float64)
            dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
            worst = float(value)
        return Proof(
            compared=compared, dtype=dtype, error=worst, tolerance=tolerance, passed=worst <= tolerance
        )

    def _flops(self, inputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        """Floating-point operations of a sample's forward and backward, counted on rank 0 by torch.

        Of a whole batch, divided: BatchNorm refuses a single sample. None where torch cannot count them.
        """
        if self.rank != 0:
            return None
        try:
            return self._count_flops(inputs, targets) / len(inputs) or None
        except Exception:
            traceback.print_exc()
            return None

    def _count_flops(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        model = self.training.fresh_model()
        counter = FlopCounterMode(display=False)
        # The counter knows matrix products, and no fused attention of the CPU: have it as products.
        with sdpa_kernel(SDPBackend.MATH), counter:
            loss = self.training.workload.loss(model(_cast(inputs, self.training.dtype)), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return float(counter.get_total_flops())
