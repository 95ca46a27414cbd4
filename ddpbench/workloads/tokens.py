"""Random tokens for the language models of the `hf` workload, and datasets that cut them into windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TOKENS = 1_000_000
MASK = 0
"""Token that replaces masked tokens."""
MASKED_SHARE = 0.15
IGNORED = -100
"""Target value that cross-entropy ignores."""


def random_tokens(vocabulary: int, count: int = TOKENS) -> torch.Tensor:
    """Return random tokens from 1 to `vocabulary` - 1, as int32 of shape [count].

    Token k has a probability proportional to 1/k (Zipf's law), so gradients touch about as many rows of an embedding as
    in real training.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    limit = torch.tensor(float(vocabulary)).log()
    drawn = (torch.rand(count, generator=generator) * limit).exp().to(torch.int32)
    return drawn.clamp_(1, vocabulary - 1)


@dataclass(frozen=True, slots=True)
class Next:
    """A dataset of pairs `(tokens, next tokens)`, both int64 of shape [length]."""

    tokens: torch.Tensor
    length: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.length
        window = self.tokens[start : start + self.length + 1].long()
        return window[:-1], window[1:]


@dataclass(frozen=True, slots=True)
class Masked:
    """A dataset of pairs `(tokens, targets)` for masked language modelling, both int64 of shape [length].

    Some tokens are replaced by `MASK`. At these positions, the targets are the original tokens; at all others,
    `IGNORED`. Every sample has the same number of masked tokens, so the mean loss over tokens equals the mean over
    samples.
    """

    tokens: torch.Tensor
    length: int

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        if not 0 <= index < len(self):
            raise IndexError(index)
        inputs = self.tokens[index * self.length : (index + 1) * self.length].long()
        generator = torch.Generator().manual_seed(index)
        chosen = torch.randperm(self.length, generator=generator)[: round(MASKED_SHARE * self.length)]
        targets = torch.full_like(inputs, IGNORED)
        targets[chosen] = inputs[chosen]
        inputs[chosen] = MASK
        return inputs, targets
