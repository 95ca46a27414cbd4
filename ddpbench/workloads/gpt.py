"""The `gpt` workload: a byte-level GPT in minGPT's sizes, on real text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel

from ddpbench.spec import Pieces, limits
from ddpbench.units import Unit
from ddpbench.workloads.base import Workload
from ddpbench.workloads.text import VOCABULARY, Windows, read_text

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Size of a GPT: layers, attention heads, width, and default block size (tokens)."""

    layers: int
    heads: int
    width: int
    block_size: int


SHAPES = {
    "nano": Shape(layers=3, heads=3, width=48, block_size=64),
    "micro": Shape(layers=4, heads=4, width=128, block_size=128),
    "mini": Shape(layers=6, heads=6, width=192, block_size=128),
    "gopher-44m": Shape(layers=8, heads=16, width=512, block_size=256),
    "small": Shape(layers=12, heads=12, width=768, block_size=512),
    "medium": Shape(layers=24, heads=16, width=1024, block_size=1024),
    "large": Shape(layers=36, heads=20, width=1280, block_size=1024),
    "xl": Shape(layers=48, heads=25, width=1600, block_size=1024),
}
"""Sizes by name. Up to `small` (minGPT's `gpt2`) they are minGPT's configurations, with ddpbench's block sizes. The
larger sizes are GPT-2's.

With bytes as the vocabulary, `medium` has 304 million parameters, `large` 710 million and `xl` 1,478 million. With
AdamW, each parameter takes 16 bytes (value, gradient and two states), so `xl` needs 24 GB plus activations.
"""


class GptOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the `gpt` workload."""

    text: list[str] = []
    """Text files to train on. Empty: the source of Python's standard library."""
    block_size: Annotated[int, limits.BLOCK_SIZE, Unit("tokens")] | None = None
    """Tokens (bytes) per sample. Unset: that of the model's size."""
    learning_rate: Annotated[float, limits.ADAM_LEARNING_RATE, Unit("1")] = 3e-4
    """Learning rate."""


class Gpt(Workload[GptOptions]):
    """A GPT that predicts the next byte at every position of a block of text."""

    name = "gpt"
    options = GptOptions

    def pieces(self, kind: Pieces) -> int:
        return SHAPES[self.size].layers + 2 if kind == "stages" else 0

    def model(self, options: GptOptions) -> torch.nn.Module:
        from ddpbench.workloads.gpt_model import Decoder

        shape = SHAPES[self.size]
        return Decoder(
            layers=shape.layers,
            heads=shape.heads,
            width=shape.width,
            block_size=self._block_size(options),
            vocabulary=VOCABULARY,
        )

    def dataset(self, options: GptOptions) -> Dataset[Any]:
        block_size = self._block_size(options)
        return Windows(read_text(options.text, at_least=block_size + 1), block_size)  # type: ignore[return-value]

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def optimizer(self, parameters: Any, options: GptOptions) -> torch.optim.Optimizer:
        import torch

        # minGPT exempts biases and norms from weight decay. Here all parameters get it, because a strategy
        # may pass flattened ones, whose kind is no longer known.
        return torch.optim.AdamW(parameters, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)

    def _block_size(self, options: GptOptions) -> int:
        return options.block_size or SHAPES[self.size].block_size
