"""Build models of the transformers library from configurations."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn


class Logits(nn.Module):
    """Wraps a model so that it returns only its logits, [batch, classes] or [batch, time, vocabulary]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(inputs).logits
        return logits


def build(kind: str, changes: dict[str, Any], vocabulary: int, dropout: float, classes: int) -> nn.Module:
    """Return a model of this kind ("bert", "gpt2" or "resnet"), with weights initialised by the library.

    `changes` are settings that differ from the library's defaults.
    """
    library: Any = importlib.import_module("transformers")
    model: nn.Module
    if kind == "bert":
        drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        model = library.BertForMaskedLM(library.BertConfig(vocab_size=vocabulary, **drops, **changes))
    elif kind == "gpt2":
        drops = {"embd_pdrop": dropout, "attn_pdrop": dropout, "resid_pdrop": dropout}
        settings = {"use_cache": False, **drops, **changes}
        model = library.GPT2LMHeadModel(library.GPT2Config(vocab_size=vocabulary, **settings))
    else:
        model = library.ResNetForImageClassification(library.ResNetConfig(num_labels=classes))
    return Logits(model)
