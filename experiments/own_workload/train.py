"""A workload of one's own in the package's own form: a regression on two inputs, with options."""

from typing import Any

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch.utils.data import Dataset

from ddpbench.workloads import Workload

SAMPLES = 4096
READINGS = 48


class Options(BaseModel, extra="forbid", frozen=True):
    """What `[options."own_workload/train.py"]` may say."""

    width: int = Field(default=256, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)


class Readings(Dataset[Any]):
    """Item i is `({"series": float32 [48], "kind": int64}, float32 target)`: a batch's inputs are a dictionary."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.series = torch.randn(SAMPLES, READINGS, generator=generator)
        self.kind = torch.randint(8, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        series, kind = self.series[index], self.kind[index]
        return {"series": series, "kind": kind}, series.mean() * (1 + kind)


class Forecaster(nn.Module):
    """A perceptron over the series beside an embedding of its kind."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(8, width)
        self.first = nn.Linear(READINGS, width)
        self.layers = nn.Sequential(
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 1),
        )

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = self.first(inputs["series"]) + self.kinds(inputs["kind"])
        return self.layers(hidden).squeeze(1)


class Forecast(Workload[Options]):
    """The model, the data, the loss and the optimizer; everything else is ddpbench's."""

    name = "forecast"
    options = Options

    def model(self, options: Options) -> nn.Module:
        return Forecaster(options.width)

    def dataset(self, options: Options) -> Readings:
        return Readings()

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return nn.functional.mse_loss(outputs, targets)

    def optimizer(self, parameters: Any, options: Options) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=options.learning_rate)
