"""Images of handwritten digits that need no download, because scikit-learn includes them."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CLASSES = 10
SIDE = 8
FULL = 16.0
"""Pixel value of full ink in the file; images are divided by it."""
_SEED = 0
"""Seed for shuffling the samples once, because the file is sorted by writer."""


@dataclass(frozen=True, slots=True)
class Digits:
    """A dataset of pairs `(image, label)`: float32 of shape [1, 8, 8] in [0, 1], and an int64 scalar."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return these samples in one call, which is faster than one call per sample."""
        import torch

        chosen = torch.tensor(indices)
        return list(zip(self.images[chosen].unbind(), self.labels[chosen].unbind(), strict=True))


def read_digits() -> Digits:
    """Read the 1,797 digits of the UCI Optical Recognition set (Alpaydin and Kaynak 1998) that scikit-learn includes.

    Only the data file is read, because importing scikit-learn takes longer than a launch.

    Raises:
        FileNotFoundError: scikit-learn is not installed, or its data file is in an unexpected place.
    """
    import numpy as np
    import torch

    spec = importlib.util.find_spec("sklearn")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders]
    if not found:
        raise FileNotFoundError("scikit-learn is not installed; run: pip install 'ddpbench[digits]'")
    with gzip.open(found[0], "rt", encoding="ascii") as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(_SEED))]
    return Digits(table[:, :-1].reshape(-1, 1, SIDE, SIDE) / FULL, table[:, -1].long())
