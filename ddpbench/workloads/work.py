"""Parameters and operations per sample of ddpbench's own workloads, for estimates without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddpbench.spec import Case


@dataclass(frozen=True, slots=True)
class Work:
    """A model's size, and the operations per sample of training with the workload's default options."""

    parameters: int
    flops: float
    """Floating-point operations of forward and backward per sample, as counted by `torch.utils.flop_counter`."""
    states: int
    """Number of optimizer states per parameter."""
    handed_on: int = 0
    """Number of activations per sample that the middle layer hands to the next; 0 for a model without `stages`."""


WORK: Mapping[str, Work] = {
    "mlp:small": Work(214_016, 1.245e6, 1, 256),
    "mlp:large": Work(9_050_368, 5.400e7, 1, 2_048),
    "gpt:nano": Work(112_560, 4.365e7, 2, 3_072),
    "gpt:micro": Work(875_264, 7.298e8, 2, 16_384),
    "gpt:mini": Work(2_792_448, 2.303e9, 2, 24_576),
    "gpt:gopher-44m": Work(25_613_312, 4.208e10, 2, 131_072),
    "gpt:small": Work(85_842_432, 2.905e11, 2, 393_216),
    "gpt:medium": Work(303_884_288, 2.166e12, 2, 1_048_576),
    "gpt:large": Work(710_356_480, 4.930e12, 2, 1_310_720),
    "gpt:xl": Work(1_478_019_200, 1.003e13, 2, 1_638_400),
    "cnn:small": Work(13_706, 5.322e5, 1, 128),
    "cnn:large": Work(342_282, 8.829e6, 1, 512),
    "resnet:18": Work(11_689_512, 1.065e10, 1, 100_352),
    "resnet:50": Work(25_557_032, 2.430e10, 1, 200_704),
    "two_branch:small": Work(427_776, 2.490e6, 1),
    "two_branch:large": Work(18_100_480, 1.080e8, 1),
    "hf:bert-base": Work(109_514_298, 8.550e10, 2),
    "hf:bert-tiny": Work(608_360, 1.064e8, 2),
    "hf:gpt2": Work(124_439_808, 3.795e11, 2),
    "hf:resnet-50": Work(25_557_032, 2.430e10, 2),
}
"""Work of each workload, by name. A test checks the numbers."""
_LENGTHS: Mapping[str, tuple[str, int, int]] = {
    "gpt:nano": ("block_size", 64, 1),
    "gpt:micro": ("block_size", 128, 1),
    "gpt:mini": ("block_size", 128, 1),
    "gpt:gopher-44m": ("block_size", 256, 1),
    "gpt:small": ("block_size", 512, 1),
    "gpt:medium": ("block_size", 1024, 1),
    "gpt:large": ("block_size", 1024, 1),
    "gpt:xl": ("block_size", 1024, 1),
    "resnet:18": ("image_size", 224, 2),
    "resnet:50": ("image_size", 224, 2),
    "hf:bert-base": ("tokens", 128, 1),
    "hf:bert-tiny": ("tokens", 32, 1),
    "hf:gpt2": ("tokens", 512, 1),
}
"""For each workload, the option that sets a sample's size, the option's default, and the power with which operations
and activations grow with the option.
"""


def work_of(case: Case) -> Work | None:
    """Return the work of a case's workload; None for a replay and for a user's own workload."""
    work = WORK.get(case.workload)
    if work is None or case.workload not in _LENGTHS:
        return work
    option, default, power = _LENGTHS[case.workload]
    larger = ((case.workload_options.get(option) or default) / default) ** power
    return replace(work, flops=work.flops * larger, handed_on=round(work.handed_on * larger))


def state_bytes(case: Case) -> int | None:
    """Return the bytes of a model's parameters, gradients and optimizer state; None if `work_of` is None."""
    work = work_of(case)
    return (
        None if work is None else work.parameters * (2 + work.states) * (8 if case.dtype == "float64" else 4)
    )
