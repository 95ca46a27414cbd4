"""A replica that trains one rank's piece of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ddpbench.strategies.base import Job, Replica, local_bytes, state_bytes


class PieceReplica(Replica):
    """Replica that trains one piece of the model, and frees the memory of other ranks' parameters."""

    def __init__(self, job: Job, pieces: Sequence[nn.Module], own: nn.Module) -> None:
        """Prepare to train `own`, this rank's piece. `pieces` are the pieces of all ranks.

        Raises:
            ValueError: a parameter is in two pieces, or in none.
        """
        super().__init__(job)
        names = {parameter: name for name, parameter in job.model.named_parameters()}
        found = [parameter for piece in pieces for parameter in piece.parameters()]
        seen: set[nn.Parameter] = set()
        for parameter in found:
            if parameter in seen:
                raise ValueError(f"the model cannot be cut: its {names[parameter]} is in two pieces")
            seen.add(parameter)
        if missing := names.keys() - seen:
            raise ValueError(
                f"the model cannot be cut: its {min(names[each] for each in missing)} is in no piece"
            )
        mine = list(own.parameters())
        self._own = {names[parameter]: parameter for parameter in mine}
        self.optimizer = job.make_optimizer(mine)
        for parameter in names.keys() - set(mine):
            parameter.data = parameter.data.new_empty(0)

    def own_parameters(self) -> dict[str, torch.Tensor]:
        return {name: each.detach().clone() for name, each in self._trained()}

    def own_gradients(self) -> dict[str, torch.Tensor]:
        return {
            name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in self._trained()
        }

    def held_bytes(self) -> tuple[int, int, int]:
        parameters = list(self._own.values())
        gradients = [each.grad for each in parameters if each.grad is not None]
        return local_bytes(parameters), local_bytes(gradients), state_bytes(self.optimizer)

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, each) for name, each in self._own.items() if each.requires_grad]
