"""A task that is learned quickly, and a strategy with a rank that does not train; for tests of losses."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from ddpbench.spec import Case
from ddpbench.strategies import Job, NoOptions, Replica, Strategy
from ddpbench.workloads import Workload

SAMPLES = 100
LEARNING_RATE, MOMENTUM = 0.05, 0.9


class Signs(Dataset[Any]):
    """Points, and the side of a bent line that they are on."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.points = torch.randn(SAMPLES, 6, generator=generator)
        self.sides = (self.points[:, 0] + self.points[:, 1] ** 2 > 0.7).long()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index], self.sides[index]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


class Sides(Workload[NoOptions]):
    """Two classes; a loss of ln 2 to begin with."""

    name = "sides"
    options = NoOptions

    def model(self, options: NoOptions) -> nn.Module:
        return make_model()

    def dataset(self, options: NoOptions) -> Dataset[Any]:
        return Signs()

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, options: NoOptions) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)


class Explodes(Sides):
    """The task with a learning rate at which the loss soon becomes NaN."""

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return super().loss(outputs, targets) * 1e30


class Served(Strategy[NoOptions]):
    """The first rank takes no samples and knows no loss: it adds up what the others send."""

    name = "served"
    options = NoOptions
    algorithm = "master"

    def trainers(self, world_size: int) -> int:
        return world_size - 1

    def parts(self, case: Case) -> int:
        return case.world_size - 1

    def build(self, job: Job, options: NoOptions) -> Replica:
        return ServedReplica(job)


class ServedReplica(Replica):
    """Zeros on rank 0, and the other ranks' gradients, divided by their number."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.draws = self.knows_loss = job.rank > 0

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        loss = torch.zeros(())
        if self.draws:
            loss = self.job.loss(self.job.model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self.job.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.job.world_size - 1
        return loss.detach()
