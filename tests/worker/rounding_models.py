"""Users' classes with gradients that are zero in exact arithmetic, so that in float32 they are rounding errors only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


def pictures() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.rand(256, 1, 28, 28, generator=generator), torch.randint(10, (256,), generator=generator)
    )


def numbers() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 8, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


class Weak(nn.Linear):
    """A layer with a further bias whose gradient is a hundred-thousandth of the usual one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weak = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1e-5 * self.weak


class ConvNorm:
    """A convolution with a bias that BatchNorm subtracts again."""

    dataset = staticmethod(pictures)

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            Weak(8, 10),
        )

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, 1e-3)


class LinearNorm(ConvNorm):
    """Barlow twins' loss after a layer with a bias that BatchNorm subtracts again, which Adam moves like all others."""

    dataset = staticmethod(numbers)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        views = [model(batch[0] + 0.1 * torch.randn_like(batch[0])) for _ in range(2)]
        one, other = ((each - each.mean(0)) / (each.std(0) + 1e-3) for each in views)
        shared = one.T @ other / len(one)
        return ((shared - torch.eye(8, dtype=shared.dtype)) ** 2).sum()


class Gates(nn.Module):
    """A gate from 0 to 1 for each channel, open at first, as in pruning."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate.clamp(0, 1)


class Gated(ConvNorm):
    """A layer with gates at the end of their range."""

    dataset = staticmethod(numbers)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Gates(16), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    """Return a network of convolutions, each with a bias that BatchNorm subtracts again, for pictures of one colour."""
    layers: list[nn.Module] = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    for _ in range(3):
        for size, groups in ((3, 8), (1, 1)):
            one = nn.Conv2d(8, 8, size, padding=size // 2, groups=groups)
            layers += [one, nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Steps:
    """A small network without any gradient of rounding errors only, in steps."""

    dataset = staticmethod(numbers)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = self.loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])


class _NormalisedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (gradient,) = gradients
        return gradient / gradient.norm()


class Normalised(nn.Module):
    """Passes numbers on, and a gradient of norm 1 back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _NormalisedBackward.apply(x)  # type: ignore[no-untyped-call]
        return y


class NormalisedSteps(Steps):
    """A backward that does not depend on the loss's factor, so that it is not linear in the loss, in steps."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), Normalised())


class NormSteps(Steps):
    """Layers with biases that BatchNorm subtracts again, in steps."""

    def dataset(self) -> TensorDataset:
        inputs, targets = pictures().tensors
        return TensorDataset(inputs[:, :, :8, :8], targets)

    def model(self) -> nn.Module:
        return convolutions()

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), 1e-3)


class AdagradSteps(NormSteps):
    """Adagrad divides a gradient's first values by their own size."""

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), 1e-2)


class Lion(torch.optim.Optimizer):
    """Moves each number by the sign of its averaged gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in [one for group in self.param_groups for one in group["params"] if one.grad is not None]:
            mean = self.state[each].setdefault("mean", torch.zeros_like(each))
            each.sub_(1e-3 * (0.9 * mean + 0.1 * each.grad).sign())
            mean.mul_(0.99).add_(each.grad, alpha=0.01)


class LionSteps(NormSteps):
    """Lion, whose updates are as large for rounding errors as for other gradients."""

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return Lion(model.parameters())


class PriceSteps(NormSteps):
    """Prices in dollars: in float64, a gradient of rounding errors only exceeds what Adam adds to its divisor."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        prices = 200_000 + 80_000 * batch[0][:, 0, :3, 0].sum(1)
        return ((model(batch[0])[:, 0] - prices) ** 2).mean()


class Scaled(nn.Module):
    """A network that takes bytes and computes in float32 only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x.float() / 255)
        return y


class Bytes(ConvNorm):
    """Pictures of bytes, so that float64 cannot be compared."""

    model: Any = Scaled

    def dataset(self) -> TensorDataset:
        inputs, targets = pictures().tensors
        return TensorDataset((inputs * 255).to(torch.uint8), targets)


class TinyEpsilon(ConvNorm):
    """Adam that adds next to nothing to its divisor, as in Gaussian splatting."""

    dataset = NormSteps.dataset
    model = NormSteps.model

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, 1e-3, eps=1e-15)


class Plain(TinyEpsilon):
    """A small network without any gradient of rounding errors only."""

    dataset = staticmethod(numbers)
    model = Steps.model
    optimizer = ConvNorm.optimizer


class NormalisedPlain(TinyEpsilon):
    """A backward that is not linear in the loss, trained by SGD with ddpbench's own steps."""

    dataset = staticmethod(numbers)
    model = NormalisedSteps.model

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 1e-2)
