"""A model of many small layers: as much Python as arithmetic, and hundreds of parameters to copy."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

WIDTH, CLASSES, SAMPLES = 32, 10, 4096


class Block(nn.Module):
    """A narrow layer beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input and what the layer makes of it."""
        out: torch.Tensor = x + torch.tanh(self.layer(self.norm(x)))
        return out


class Narrow:
    """Numbers of 32 features, told apart into classes by 120 narrow layers, each with a norm of its own."""

    batch = 32

    def __init__(self, blocks: int = 120) -> None:
        self.blocks = blocks

    def model(self) -> nn.Module:
        """Return a new model."""
        return nn.Sequential(*(Block() for _ in range(self.blocks)), nn.Linear(WIDTH, CLASSES))

    def dataset(self) -> TensorDataset:
        """Return made-up samples, whose class is the largest of their first ten features."""
        features = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
        return TensorDataset(features, features[:, :CLASSES].argmax(dim=1))

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch."""
        features, classes = batch
        return nn.functional.cross_entropy(model(features), classes)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of these parameters."""
        return torch.optim.SGD(parameters, lr=0.01)
