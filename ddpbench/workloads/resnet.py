"""The `resnet` workload: residual networks on random images, which need only torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel

from ddpbench.spec import Pieces, limits
from ddpbench.units import Unit
from ddpbench.workloads.base import Workload
from ddpbench.workloads.images import noise_images

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

BLOCKS = {"18": (2, 2, 2, 2), "50": (3, 4, 6, 3)}
"""Number of residual blocks in each of the four stages, by size (He et al. 2015, table 1)."""


class ResNetOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the `resnet` workload."""

    image_size: Annotated[int, limits.IMAGE_SIZE, Unit("pixels")] = 224
    """Width and height of the images."""
    classes: Annotated[int, limits.CLASSES, Unit("classes")] = 1000
    """Number of classes."""
    learning_rate: Annotated[float, limits.LEARNING_RATE, Unit("1")] = 0.1
    """Learning rate."""


class ResNet(Workload[ResNetOptions]):
    """ResNet-18 or ResNet-50 with BatchNorm, which need much computation compared with their number of parameters."""

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
