"""Small images that are cropped, mirrored and blurred one by one as they are read, as an input pipeline does."""

import torch
from torch import nn
from torch.utils.data import Dataset

SIDE, CROP, CLASSES, SAMPLES = 40, 32, 10, 2048


class Prepared(Dataset[tuple[torch.Tensor, int]]):
    """Made-up images; each is prepared anew when it is read, the same way in every run."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.classes = torch.randint(CLASSES, (SAMPLES,), generator=generator).tolist()
        self.raw = torch.randint(256, (SAMPLES, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
        self.kernel = torch.ones(3, 1, 5, 5) / 25

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        top, left, mirrored = torch.randint(SIDE - CROP, (3,), generator=generator).tolist()
        image = self.raw[index, :, top : top + CROP, left : left + CROP].float() / 255
        if mirrored % 2:
            image = image.flip(2)
        image = nn.functional.conv2d(image[None], self.kernel, padding=2, groups=3)[0]
        return (image - image.mean()) / (image.std() + 1e-3), self.classes[index]


class Images:
    """A small convolutional network that tells such images apart."""

    batch = 16

    def model(self) -> nn.Module:
        """Return a new model."""
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        )

    def dataset(self) -> Prepared:
        """Return the images."""
        return Prepared()

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch."""
        images, classes = batch
        return nn.functional.cross_entropy(model(images), classes)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of these parameters."""
        return torch.optim.SGD(parameters, lr=0.01)
