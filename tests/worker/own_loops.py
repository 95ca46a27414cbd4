"""Users' classes with what training loops have, and with what makes an optimizer train nothing; named by this path."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(64, 6, generator=generator), torch.randint(3, (64,), generator=generator)
    )


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    features, label = batch
    return nn.functional.cross_entropy(model(features), label)


class Functions:
    """All its parts are functions of the script."""

    model = build
    dataset = data
    loss = loss_of


class Clipped(Functions):
    """Gradients are clipped far below what they are, and the learning rate falls with every update."""

    def optimizer(self, model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def before_update(self, model: nn.Module) -> Any:
        return nn.utils.clip_grad_norm_(model.parameters(), 1e-2)


class Groups(Functions):
    """minGPT's way: the model makes its optimizer, with decay for matrices alone."""

    class Net(nn.Module):
        """A model that knows its optimizer."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = build()

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layers(features)
            return out

        def configure_optimizers(self, rate: float) -> torch.optim.Optimizer:
            decay = [each for each in self.parameters() if each.dim() > 1]
            rest = [each for each in self.parameters() if each.dim() <= 1]
            groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
            return torch.optim.AdamW(groups, lr=rate)

    model = Net

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = model.configure_optimizers(1e-2)
        return made


class Outputs(Functions):
    """The loss comes with other outputs, as in the transformers library."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": loss_of(model, batch), "logits": None}


class WarmsUp(Functions):
    """A schedule that begins with a learning rate of zero."""

    def optimizer(self, parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))


class Narrow(Functions):
    """Autocast in its own hand."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, batch)


class AnotherModels(Groups):
    """The natural line, and wrong: it makes another model, and that one's optimizer."""

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return self.model().configure_optimizers(1e-2)


class Part(Functions):
    """Only the last layer."""

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[2].parameters(), lr=0.1)


class Strange(Functions):
    """A weight of the loss is trained beside the model."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(()))

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([*parameters, self.weight], lr=0.1)


class Still(Functions):
    """A group with a learning rate of 0."""

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        first, last = model[0].parameters(), model[2].parameters()
        return torch.optim.SGD([{"params": first, "lr": 0.0}, {"params": last}], lr=0.1)


class Frozen(Functions):
    """A part is frozen, and the optimizer has the rest: nothing is wrong."""

    def model(self) -> nn.Module:
        model = build()
        model[0].requires_grad_(False)
        return model

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[2].parameters(), lr=0.1)


class Cached(Functions):
    """One model for all."""

    def __init__(self) -> None:
        self.made = build()

    def model(self) -> nn.Module:
        return self.made


class Backbone(Cached):
    """A fresh head on one backbone for all."""

    def model(self) -> nn.Module:
        return nn.Sequential(self.made, nn.Linear(3, 3))


class Wraps(Functions):
    """DDP in its own hand."""

    def model(self) -> nn.Module:
        return DistributedDataParallel(build())


class WrapsLightly(Functions):
    """DataParallel in its own hand."""

    def model(self) -> nn.Module:
        return nn.DataParallel(build())


class Two(Functions):
    """Two optimizers, and no word of which updates when."""

    def optimizer(self, model: Any) -> Any:
        return torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)


class NoOptimizer(Functions):
    """Forgets to return it."""

    def optimizer(self, parameters: Any) -> Any:
        torch.optim.SGD(parameters, lr=0.1)
