"""Made-up images for the vision workloads: windows over one stretch of noise. No model is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHANNELS = 3
IMAGES = 1280
"""Number of images: ImageNet's 1.28 million in thousands."""
STRIDE = 997
"""Number of values between the starts of consecutive images, a prime: images overlap in memory, and all differ.

So a thousand of them take a few megabytes, and a step reads them as from a cached dataset."""


@dataclass(frozen=True, slots=True)
class Images:
    """Item i is `(image, label)`: float32 of shape [3, size, size] from N(0, 1), and an int64 scalar."""

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
    """Return `count` images of `size` x `size` with labels below `classes`, the same in every process."""
    import torch

    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(CHANNELS * size**2 + (count - 1) * STRIDE, generator=generator)
    return Images(noise, torch.randint(classes, (count,), generator=generator), size)
