"""Strategies from a user's own file, with a workload in the same file: a sound one, and some that go wrong."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch import nn
from torch.utils.data import TensorDataset

from ddpbench.strategies import Job, Replica, Strategy


class Mine:
    """A plain workload."""

    def model(self) -> nn.Module:
        return nn.Linear(8, 1)

    def dataset(self) -> TensorDataset:
        inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
        return TensorDataset(inputs, inputs.sum(1, keepdim=True))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])


class Options(BaseModel, extra="forbid", frozen=True):
    scale: float = 1.0


class Averages(Strategy[Options]):
    """Averages all gradients, one after the other, after the whole backward pass."""

    options = Options
    algorithm = "all_reduce"
    schedule = "after_backward"

    def build(self, job: Job, options: Options) -> Replica:
        return AveragesReplica(job, options.scale)


class AveragesReplica(Replica):
    def __init__(self, job: Job, scale: float) -> None:
        super().__init__(job)
        self.scale = scale

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        loss = self.job.loss(self.job.model(inputs), targets)
        loss.backward()
        for number, gradient in enumerate(self.gradients()):
            start = self.job.recorder.mark()
            dist.all_reduce(gradient)
            size = gradient.numel() * gradient.element_size()
            self.job.recorder.add_transfer(
                bucket=number, op="all_reduce", size=size, start=start, end=self.job.recorder.mark()
            )
            gradient *= self.scale / self.job.world_size
        return loss.detach()


class Raises(Averages):
    def build(self, job: Job, options: Options) -> Replica:
        raise KeyError("of mine")


class RaisesLater(Averages):
    def build(self, job: Job, options: Options) -> Replica:
        return RaisesLaterReplica(job, 1.0)


class RaisesLaterReplica(AveragesReplica):
    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        raise ZeroDivisionError("of mine")
