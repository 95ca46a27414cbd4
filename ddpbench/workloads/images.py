"""Random images for the vision workloads, taken as overlapping windows of one array of noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHANNELS = 3
IMAGES = 1280
"""Number of images, a thousandth of ImageNet's 1.28 million."""
STRIDE = 997
"""Number of values between the starts of consecutive images in the array; a prime, so that images overlap but all
differ.

A thousand images then need only a few megabytes, and reading them is like reading a cached dataset.
"""


@dataclass(frozen=True, slots=True)
class Images:
    """A dataset of pairs `(image, label)`: float32 [3, size, size] from N(0, 1), and an int64 scalar."""

    noise: torch.Tensor
    labels: torch.Tensor
    size: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * STRIDE
        values = self.noise[start : start + CHANNELS * self.size**2]
        return values.view(CHANNELS, self.size, self.size), self.labels[index]


def noise_images(size: int, classes: int, count: int = IMAGES) -> Images:
    """Return a dataset of `count` random images of `size` x `size` pixels with labels below `classes`.

    The dataset is the same in every process.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(CHANNELS * size**2 + (count - 1) * STRIDE, generator=generator)
    return Images(noise, torch.randint(classes, (count,), generator=generator), size)
