"""Made-up tokens for the language models of the `hf` workload, and datasets of windows over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TOKENS = 1_000_000
MASK = 0
"""The token that replaces a masked one."""
MASKED_SHARE = 0.15
IGNORED = -100
"""The target that cross-entropy ignores."""


def random_tokens(vocabulary: int, count: int = TOKENS) -> torch.Tensor:
    """Draw tokens from a vocabulary in Zipf's proportions (the k-th as often as 1/k), never `MASK`; int32 [count].

    Most are common ones, as in a text, so that an embedding's gradient touches rows as in training.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    limit = torch.tensor(float(vocabulary)).log()
    drawn = (torch.rand(count, generator=generator) * limit).exp().to(torch.int32)
    return drawn.clamp_(1, vocabulary - 1)


@dataclass(frozen=True, slots=True)
class Next:
    """Samples `(tokens, next tokens)`, both int64 [length]."""

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
    """Samples `(tokens with some masked, the original tokens there)`, both int64 [length]; elsewhere `IGNORED`.

    Every sample has the same number masked, so that a mean over masked tokens equals one over samples.
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
