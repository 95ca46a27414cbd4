"""The model of the `gpt` workload."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from ddpbench.workloads.piece import Piece


class SelfAttention(nn.Module):
    """Causal multi-head attention; input and output have the shape [batch, time, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        packed = self.query_key_value(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.projection(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class TransformerBlock(nn.Module):
    """A pre-norm transformer block: attention, then a perceptron with a hidden layer of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.expansion = nn.Linear(width, 4 * width)
        self.projection = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        hidden = functional.gelu(self.expansion(self.norm_2(x)), approximate="tanh")
        out: torch.Tensor = x + self.projection(hidden)
        return out


class Decoder(nn.Module):
    """A GPT, which maps int64 tokens [batch, time] to logits [batch, time, vocabulary].

    Architecture and initialisation are those of minGPT (github.com/karpathy/minGPT, mingpt/model.py), after Radford et
    al. 2019: pre-norm blocks, GELU in its tanh form, learned positions, and a separate output layer without bias.
    Weights are drawn from N(0, 0.02²), and layers that write into the residual stream are scaled by 1/√(2·layers).
    Dropout is left out, because replicas must be comparable with one process.
    """

    def __init__(self, *, layers: int, heads: int, width: int, block_size: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)
        for name, parameter in self.named_parameters():
            if name.endswith("projection.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self._embedded(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def stages(self) -> list[nn.Module]:
        """Return the model as modules to call one after another."""
        first = Piece(self._embedded, self.tokens, self.positions)
        return [first, *self.blocks, nn.Sequential(self.norm, self.head)]

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return x


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
