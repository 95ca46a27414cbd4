"""The `hf` workload: models of the transformers library, built from a configuration without a download."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel

from ddpbench.spec import Case, limits
from ddpbench.units import Unit
from ddpbench.workloads.base import Workload
from ddpbench.workloads.images import noise_images
from ddpbench.workloads.tokens import Masked, Next, random_tokens

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

CLASSES, IMAGE_SIZE = 1000, 224
BERT_POSITIONS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A configuration of a transformers model; `changes` are settings that differ from the library's defaults."""

    kind: Literal["bert", "gpt2", "resnet"]
    tokens: int = 0
    """Default number of tokens per sample."""
    vocabulary: int = 0
    changes: tuple[tuple[str, int], ...] = ()


MODELS = {
    "bert-base": Built(kind="bert", tokens=128, vocabulary=30522),
    "bert-tiny": Built(
        kind="bert",
        tokens=32,
        vocabulary=1000,
        changes=(
            ("hidden_size", 128),
            ("num_hidden_layers", 2),
            ("num_attention_heads", 2),
            ("intermediate_size", 512),
        ),
    ),
    "gpt2": Built(kind="gpt2", tokens=512, vocabulary=50257),
    "resnet-50": Built(kind="resnet"),
}
"""Models by size. The library's defaults are bert-base-uncased, the smallest GPT-2 and ResNet-50. `bert-tiny` has the
layers of BERT-tiny (Turc et al. 2019) and a small vocabulary, for quick tests."""


class HfOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the `hf` workload."""

    tokens: Annotated[int, limits.TOKENS, Unit("tokens")] | None = None
    """Tokens per sample. Unset: 128 for BERT and 512 for GPT-2."""
    dropout: Annotated[float, limits.DROPOUT, Unit("1")] = 0.0
    """Dropout probability; the library's own is 0.1."""
    learning_rate: Annotated[float, limits.ADAM_LEARNING_RATE, Unit("1")] = 1e-4
    """Learning rate."""


class HuggingFace(Workload[HfOptions]):
    """BERT trained on masked tokens, GPT-2 on next tokens, or ResNet-50 on classes, all with random data."""

    name = "hf"
    options = HfOptions
    imports = tuple(f"transformers.models.{kind}.modeling_{kind}" for kind in ("bert", "gpt2", "resnet"))

    def check(self, case: Case) -> str | None:
        if importlib.util.find_spec("transformers") is None:
            return "transformers is not installed; run: pip install 'ddpbench[hf]'"
        kind, options = MODELS[self.size].kind, case.workload_options
        if kind == "resnet" and (idle := [name for name in ("tokens", "dropout") if options.get(name)]):
            return f"hf:{self.size} has no {' and no '.join(idle)}: without effect there, so leave it out"
        if kind == "bert" and (options.get("tokens") or 0) > BERT_POSITIONS:
            return f"option tokens is {options['tokens']}; BERT has positions for {BERT_POSITIONS}"
        return None

    def model(self, options: HfOptions) -> torch.nn.Module:
        from ddpbench.workloads.hf_model import build

        built = MODELS[self.size]
        return build(built.kind, dict(built.changes), built.vocabulary, options.dropout, CLASSES)

    def dataset(self, options: HfOptions) -> Dataset[Any]:
        built = MODELS[self.size]
        if built.kind == "resnet":
            return noise_images(IMAGE_SIZE, CLASSES)  # type: ignore[return-value]
        length = options.tokens or built.tokens
        tokens = random_tokens(built.vocabulary)
        return (Masked if built.kind == "bert" else Next)(tokens, length)  # type: ignore[return-value]

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def optimizer(self, parameters: Any, options: HfOptions) -> torch.optim.Optimizer:
        import torch

        return torch.optim.AdamW(parameters, lr=options.learning_rate)
