"""The interface of all-reduce algorithms over point-to-point messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from ddpbench.collectives.transport import Transport


class Collective(ABC):
    """An all-reduce algorithm, as one rank runs it.

    It must be correct for any number of ranks, any length of tensor, and any type that can be added. All ranks end with
    the same bits: one rank sums an element, or all ranks sum it in the same order.
    """

    name: ClassVar[str]

    def __init__(self, transport: Transport, *, ranks_per_node: int = 1) -> None:
        self.transport = transport
        self.rank, self.size = transport.rank, transport.size
        self.ranks_per_node = ranks_per_node
        self._scratch: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace a contiguous one-dimensional tensor by its sum over all ranks, and return when the sum is complete.

        Raises:
            CollectiveError: another rank failed before the end.
        """
        if self.size > 1 and tensor.numel():
            self.transport.phase = f"{self.name} of {tensor.numel():,} numbers"
            self._all_reduce(tensor)
            self.transport.flush()

    @abstractmethod
    def _all_reduce(self, tensor: torch.Tensor) -> None:
        """Run the algorithm; called only with several ranks and a tensor that is not empty."""

    def scratch(self, tensor: torch.Tensor, elements: int) -> torch.Tensor:
        """Return uninitialized memory for `elements` numbers of the tensor's type and device, which later calls
        reuse.
        """
        key = (tensor.dtype, tensor.device)
        found = self._scratch.get(key)
        if found is None or found.numel() < elements:
            found = self._scratch[key] = torch.empty(elements, dtype=tensor.dtype, device=tensor.device)
        return found[:elements]


def shares(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Split a tensor into `count` parts whose lengths differ by at most one.

    Some parts are empty if the tensor has fewer than `count` elements.
    """
    return list(torch.tensor_split(tensor, count))
