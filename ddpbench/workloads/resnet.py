"""The `resnet` workload: residual networks on made-up images, in torch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from ddpbench.spec import Pieces
from ddpbench.units import Unit
from ddpbench.workloads.base import Workload
from ddpbench.workloads.images import noise_images

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

BLOCKS = {"18": (2, 2, 2, 2), "50": (3, 4, 6, 3)}
"""Residual blocks in each of the four stages (He et al. 2015, table 1)."""


class ResNetOptions(BaseModel, extra="forbid", frozen=True):
    """What can be chosen of the `resnet` workload."""

    image_size: Annotated[int, Unit("pixels")] = Field(default=224, ge=32, le=1024)
    """Width and height of the images."""
    classes: Annotated[int, Unit("classes")] = Field(default=1000, ge=2, le=100_000)
    """Number of classes."""
    learning_rate: Annotated[float, Unit("1")] = Field(default=0.1, gt=0, le=10)
    """Learning rate of the optimizer."""


class ResNet(Workload[ResNetOptions]):
    """ImageNet's classifiers of 18 and 50 layers, with BatchNorm: much computation for few parameters."""

    name = "resnet"
    options = ResNetOptions
    batch_statistics = True

    def pieces(self, kind: Pieces) -> int:
        return sum(BLOCKS[self.size]) + 2 if kind == "stages" else 0

    def model(self, options: ResNetOptions) -> torch.nn.Module:
        from ddpbench.workloads.resnet_model import Classifier

        return Classifier(BLOCKS[self.size], bottleneck=self.size == "50", classes=options.classes)

    def dataset(self, options: ResNetOptions) -> Dataset[Any]:
        return noise_images(options.image_size, options.classes)  # type: ignore[return-value]

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, options: ResNetOptions) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=options.learning_rate, momentum=0.9, weight_decay=1e-4)
