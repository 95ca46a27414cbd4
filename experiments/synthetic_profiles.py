"""Makes the synthetic profiles that come with ddpbench, from published times and the architectures' definitions.

    python experiments/synthetic_profiles.py [FOLDER]

What is assumed is written into each file. Layers are listed in the order in which forward runs them, with their
parameters named and shaped as torchvision and Hugging Face have them, and the operations of a sample's forward.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpbench.workloads.profile import Parameter, Profile, Provenance, Seconds
from ddpbench.workloads.shipped import SHIPPED

TABLE = (
    "p50 of an iteration without DDP on one V100 32 GB (DGX), fp32, local batch 32: PyTorch repository, "
    "benchmarks/distributed/ddp/README.md"
)
FORWARD_SHARE = 1 / 3
"""Backward computes gradients of inputs and of weights: twice forward's operations."""
MEMORY_BYTES_PER_S = 900e9
"""A V100's memory."""
OPTIMIZER_BYTES = 5 * 4
"""SGD with momentum reads parameter, gradient and momentum, and writes two of them: fp32."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters whose gradients are ready together, and a sample's operations in forward."""

    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    flops: float


def convolution(name: str, inputs: int, outputs: int, kernel: int, *, size: int, groups: int = 1) -> Layer:
    """Without a bias; `size` is the outputs' height and width."""
    shape = (outputs, inputs // groups, kernel, kernel)
    return Layer(((f"{name}.weight", shape),), 2 * math.prod(shape) * size * size)


def norm(name: str, width: int) -> Layer:
    """A normalisation's weight and bias; it takes no time to speak of."""
    return Layer(((f"{name}.weight", (width,)), (f"{name}.bias", (width,))), 0)


def linear(name: str, inputs: int, outputs: int, tokens: int = 1) -> Layer:
    """With a bias."""
    return Layer(
        ((f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))), 2 * inputs * outputs * tokens
    )


def resnet(blocks: tuple[int, ...], *, groups: int = 1, group_width: int = 64) -> Iterator[Layer]:
    """A ResNet or ResNeXt of bottlenecks on 224 x 224 images (He et al. 2015; Xie et al. 2017)."""
    yield convolution("conv1", 3, 64, 7, size=112)
    yield norm("bn1", 64)
    channels, size = 64, 56
    for stage, count in enumerate(blocks):
        planes = 64 << stage
        width, outputs = planes * group_width // 64 * groups, 4 * planes
        for number in range(count):
            name = f"layer{stage + 1}.{number}"
            after = size // 2 if stage and not number else size
            yield convolution(f"{name}.conv1", channels, width, 1, size=size)
            yield norm(f"{name}.bn1", width)
            yield convolution(f"{name}.conv2", width, width, 3, size=after, groups=groups)
            yield norm(f"{name}.bn2", width)
            yield convolution(f"{name}.conv3", width, outputs, 1, size=after)
            yield norm(f"{name}.bn3", outputs)
            if channels != outputs:
                yield convolution(f"{name}.downsample.0", channels, outputs, 1, size=after)
                yield norm(f"{name}.downsample.1", outputs)
            channels, size = outputs, after
    yield linear("fc", channels, 1000)


def vgg16() -> Iterator[Layer]:
    """Configuration D of Simonyan & Zisserman 2015."""
    channels, size, place = 3, 224, 0
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            weight = convolution(f"features.{place}", channels, width, 3, size=size)
            bias = (f"features.{place}.bias", (width,))
            yield Layer((*weight.parameters, bias), weight.flops)
            channels, place = width, place + 2
        size, place = size // 2, place + 1
    for place, (inputs, outputs) in zip((0, 3, 6), ((25088, 4096), (4096, 4096), (4096, 1000)), strict=True):
        yield linear(f"classifier.{place}", inputs, outputs)


def bert_base(tokens: int) -> Iterator[Layer]:
    """Devlin et al. 2019, uncased vocabulary, with the pooler; a sample has so many tokens."""
    width, inner = 768, 3072
    embeddings = (("word", 30522), ("position", 512), ("token_type", 2))
    names = tuple((f"embeddings.{kind}_embeddings.weight", (size, width)) for kind, size in embeddings)
    yield Layer(names, 0)
    yield norm("embeddings.LayerNorm", width)
    for number in range(12):
        name = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield linear(f"{name}.attention.self.{part}", width, width, tokens)
        yield Layer((), 2 * 2 * tokens * tokens * width)  # queries by keys, and weights by values
        yield linear(f"{name}.attention.output.dense", width, width, tokens)
        yield norm(f"{name}.attention.output.LayerNorm", width)
        yield linear(f"{name}.intermediate.dense", width, inner, tokens)
        yield linear(f"{name}.output.dense", inner, width, tokens)
        yield norm(f"{name}.output.LayerNorm", width)
    yield linear("pooler.dense", width, width)


def profile(
    workload: str,
    layers: list[Layer],
    *,
    batch: int,
    sample_bytes: int,
    step_s: float | None = None,
    flops_per_s: float = 0.0,
    publication: str = "",
    assumptions: tuple[str, ...] = (),
) -> Profile:
    """The profile of a published step, or of one computed at an assumed rate."""
    elements = sum(math.prod(shape) for layer in layers for _, shape in layer.parameters)
    operations = sum(layer.flops for layer in layers)
    optimizer_s = OPTIMIZER_BYTES * elements / MEMORY_BYTES_PER_S
    compute_s = operations / FORWARD_SHARE * batch / flops_per_s if step_s is None else step_s - optimizer_s
    backward_s = (1 - FORWARD_SHARE) * compute_s
    ready_s: dict[str, float] = {}
    done = 0.0
    for layer in reversed(layers):
        done += layer.flops
        ready_s |= {name: backward_s * done / operations for name, _ in layer.parameters}
    return Profile(
        source="synthetic",
        workload=workload,
        local_batch=batch,
        device="V100",
        provenance=Provenance(
            publication=publication,
            assumptions=(
                *assumptions,
                "forward : backward = 1 : 2",
                "a layer's backward takes time in proportion to its operations; its gradients are ready at its end",
                "the update reads and writes 20 bytes a parameter (SGD with momentum) at 900 GB/s",
            ),
        ),
        sample_bytes=sample_bytes,
        forward_s=_seconds(FORWARD_SHARE * compute_s),
        backward_s=_seconds(backward_s),
        optimizer_s=_seconds(optimizer_s),
        parameters=tuple(
            Parameter(name=name, shape=shape, dtype="float32", ready_s=_seconds(ready_s[name]))
            for layer in layers
            for name, shape in layer.parameters
        ),
    )


def _seconds(value: float) -> Seconds:
    return Seconds(mean=round(value, 6))


IMAGE_BYTES = 3 * 224 * 224 * 4 + 8
"""An image as float32, and its label."""
TOKENS = 512
"""BERT's longest sample."""


def profiles() -> dict[str, Profile]:
    """Every synthetic profile by its name."""
    published = {
        "resnet50-v100": ("ResNet-50", 0.097, list(resnet((3, 4, 6, 3)))),
        "resnet101-v100": ("ResNet-101", 0.162, list(resnet((3, 4, 23, 3)))),
        "resnext50-v100": (
            "ResNeXt-50 32x4d",
            0.145,
            list(resnet((3, 4, 6, 3), groups=32, group_width=4)),
        ),
        "resnext101-v100": (
            "ResNeXt-101 32x8d",
            0.415,
            list(resnet((3, 4, 23, 3), groups=32, group_width=8)),
        ),
    }
    found = {
        name: profile(workload, layers, batch=32, sample_bytes=IMAGE_BYTES, step_s=step_s, publication=TABLE)
        for name, (workload, step_s, layers) in published.items()
    }
    found["vgg16-v100"] = profile(
        "VGG-16",
        list(vgg16()),
        batch=32,
        sample_bytes=IMAGE_BYTES,
        flops_per_s=12e12,
        assumptions=(
            "no published time was at hand: operations at 12 TFLOP/s, three quarters of a V100's fp32 peak",
        ),
    )
    found["bert-base-v100"] = profile(
        "BERT-base",
        list(bert_base(TOKENS)),
        batch=8,
        sample_bytes=2 * 8 * TOKENS,
        flops_per_s=9e12,
        publication="the rate of operations alone: BERT-large trains 8.36 sequences/s of 512 tokens in fp32 on one "
        "V100 32 GB of a DGX-1, which is 9.2 TFLOP/s with its head: NVIDIA DeepLearningExamples, "
        "PyTorch/LanguageModeling/BERT/README.md, March 2020",
        assumptions=(
            "BERT-base computes at that rate too: 9 TFLOP/s",
            f"a sample has {TOKENS} tokens; no head but the pooler; embeddings are dense and take no time",
        ),
    )
    return found


def main() -> None:
    """Writes them all."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED
    for name, made in profiles().items():
        (folder / f"{name}.json").write_text(made.dumps(), encoding="utf-8")


if __name__ == "__main__":
    main()
