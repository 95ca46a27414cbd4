"""A rank's training job: workload, data and model for a case, and the step the harness times."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ddpbench.measure.blocks import Control
from ddpbench.measure.recorder import Recorder
from ddpbench.records.heartbeat import Heartbeat
from ddpbench.spec import Case
from ddpbench.strategies import Job, Replica, Strategy, load_strategy
from ddpbench.worker.batches import endless, make_loader
from ddpbench.worker.place import Place
from ddpbench.workloads import load_workload


class DivergedError(Exception):
    """Training went wrong: a loss that is no number, or replicas that differ."""


class Training:
    """Everything of a case that lives in one rank, before a strategy is put on it."""

    def __init__(self, case: Case, place: Place, device: torch.device) -> None:
        self.case, self.place, self.device = case, place, device
        self.strategy: Strategy[Any] = load_strategy(case.strategy)
        self.workload = load_workload(case.workload)
        self.workload_options = self.workload.options.model_validate(case.workload_options)
        self.options = self.strategy.options.model_validate(case.options)
        self.dtype: torch.dtype = getattr(torch, case.dtype)
        self.dataset = self.workload.dataset(self.workload_options)

    def fresh_model(self, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """A model in its initial state, the same in every rank: the case's seed decides it."""
        torch.manual_seed(self.case.seed)
        model = self.workload.model(self.workload_options).to(dtype or self.dtype).to(self.device)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(f"workload {self.case.workload} has no parameters to train")
        torch.manual_seed(self.case.seed + 1 + self.place.rank)
        return model

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """The rank's batches, endlessly."""
        loader = make_loader(
            self.dataset,
            self.case,
            rank=self.place.rank,
            processes=self.place.processes,
            loader_cores=self.place.loader_cores,
        )
        return endless(loader, self.device, self.dtype)

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """The workload's optimizer, with its options."""
        return self.workload.optimizer(parameters, self.workload_options)

    def replica(self, model: torch.nn.Module, recorder: Recorder, *, distributed: bool) -> Replica:
        """The strategy's replica of this model."""
        job = Job(
            case=self.case,
            model=model,
            loss=self.workload.loss,
            make_optimizer=self.make_optimizer,
            device=self.device,
            rank=self.place.rank,
            local_rank=self.place.local_rank,
            world_size=self.case.world_size,
            distributed=distributed,
            recorder=recorder,
        )
        return self.strategy.build(job, self.options)


class StepLoop:
    """The one training step of all strategies: a batch, its gradients, the update."""

    def __init__(
        self,
        replica: Replica,
        batches: Iterator[tuple[Any, Any]],
        recorder: Recorder,
        heartbeat: Heartbeat,
    ) -> None:
        self.replica = replica
        self._batches = batches
        self._recorder = recorder
        self._beat = heartbeat.beat
        self.loss: torch.Tensor | None = None

    def step(self) -> None:
        """One step. The loss stays on the device; `check_loss` reads it outside timed regions."""
        recorder = self._recorder
        with recorder.span("data"):
            inputs, targets = next(self._batches)
        self.loss = self.replica.gradients_of(inputs, targets)
        with recorder.span("optimizer"):
            self.replica.apply()
        self._beat()

    def check_loss(self) -> float:
        """The last step's loss.

        Raises:
            DivergedError: it is NaN or infinite.
        """
        assert self.loss is not None
        value = float(self.loss)
        if not math.isfinite(value):
            raise DivergedError(
                f"the loss is {value}: lower the learning rate, or look for a bug in the model"
            )
        return value


def checksum(model: torch.nn.Module) -> str:
    """A digest of all parameters' bits; buffers such as BatchNorm's running statistics are not in it."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().data)
    return digest.hexdigest()[:32]


def all_equal(text: str, control: Control, processes: int) -> bool:
    """Whether all ranks hold the same text of at most 64 characters (a checksum)."""
    if processes == 1:
        return True
    group = getattr(control, "group", None)
    data = text.encode().ljust(64)[:64]
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    gathered = [torch.empty_like(own) for _ in range(processes)]
    dist.all_gather(gathered, own, group=group)
    return all(torch.equal(other, gathered[0]) for other in gathered)
