"""Peak rates of known GPUs, and the model FLOPs utilisation (MFU) computed from them.

    MFU = operations of a sample's forward and backward x samples/s / (world size x one GPU's peak)

(Chowdhery et al. 2022, PaLM, appendix B), with the operations that torch counts: those of matrix products and
convolutions. The peak is the dense one, without sparsity, for the format in which the products are computed:

    bf16, fp16   tensor cores, accumulating in float32, as torch does
    float32      the plain FP32 cores. torch uses TF32 for products only on request, but cuDNN's convolutions use
                 it from Ampere on, so a ResNet's MFU in full precision may exceed 1, up to `TF32_OVER_FLOAT32`
    float64      tensor cores if the GPU has them for float64 (cuBLAS uses them), else the FP64 cores

There is no MFU for a GPU that is not in the table, nor for a CPU, whose peak depends on its clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ddpbench.spec import OWN_TYPES, Case, grouping


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """A model of GPU, with a pattern that matches its name, and its dense peaks in 10^12 operations per second."""

    name: str
    """Regular expression for the entire name that CUDA gives."""
    bf16: float | None
    fp16: float | None
    float32: float | None
    float64: float | None = None
    source: str

    def rate(self, kind: str) -> float | None:
        """Return the peak (operations/s) in `bf16`, `fp16`, `float32` or `float64`; None if the GPU lacks it."""
        value: float | None = getattr(self, kind, None)
        return None if value is None else value * 1e12


TF32_OVER_FLOAT32 = 8.0
"""Largest ratio of TF32 to float32 peaks of any of these GPUs: 156 to 19.5 for an A100, less for the others."""

PEAKS: tuple[Peak, ...] = (
    Peak(
        name=r"NVIDIA (H100 80GB HBM3|H100 SXM.*|H200|GH200.*)",
        bf16=989.4,
        fp16=989.4,
        float32=66.9,
        float64=66.9,
        source="NVIDIA H100 Tensor Core GPU Architecture (white paper), table 2, SXM5; H200 data sheet",
    ),
    Peak(
        name=r"NVIDIA H100 PCIe",
        bf16=756.0,
        fp16=756.0,
        float32=51.2,
        float64=51.2,
        source="NVIDIA H100 Tensor Core GPU Architecture (white paper), table 2, PCIe",
    ),
    Peak(
        name=r"NVIDIA (H100|H200) NVL",
        bf16=835.5,
        fp16=835.5,
        float32=60.0,
        float64=60.0,
        source="NVIDIA H100 and H200 NVL data sheets (half of the rates shown with sparsity)",
    ),
    Peak(
        name=r"(NVIDIA )?A100.*",
        bf16=312.0,
        fp16=312.0,
        float32=19.5,
        float64=19.5,
        source="NVIDIA A100 data sheet",
    ),
    Peak(
        name=r"NVIDIA A30", bf16=165.0, fp16=165.0, float32=10.3, float64=10.3, source="NVIDIA A30 data sheet"
    ),
    Peak(name=r"NVIDIA A40", bf16=149.7, fp16=149.7, float32=37.4, source="NVIDIA A40 data sheet"),
    Peak(name=r"NVIDIA A10", bf16=125.0, fp16=125.0, float32=31.2, source="NVIDIA A10 data sheet"),
    Peak(
        name=r"NVIDIA RTX A6000", bf16=154.8, fp16=154.8, float32=38.7, source="NVIDIA RTX A6000 data sheet"
    ),
    Peak(
        name=r"Tesla V100-(SXM2|SXM3).*",
        bf16=None,
        fp16=125.0,
        float32=15.7,
        float64=7.8,
        source="NVIDIA V100 data sheet",
    ),
    Peak(
        name=r"Tesla V100-PCIE.*",
        bf16=None,
        fp16=112.0,
        float32=14.0,
        float64=7.0,
        source="NVIDIA V100 data sheet",
    ),
    Peak(
        name=r"Tesla V100S-PCIE.*",
        bf16=None,
        fp16=130.0,
        float32=16.4,
        float64=8.2,
        source="NVIDIA V100 data sheet",
    ),
    Peak(name=r"Tesla T4", bf16=None, fp16=65.0, float32=8.1, source="NVIDIA T4 data sheet"),
    Peak(
        name=r"NVIDIA L4",
        bf16=121.0,
        fp16=121.0,
        float32=30.3,
        source="NVIDIA L4 data sheet (half of the rates shown with sparsity)",
    ),
    Peak(name=r"NVIDIA L40", bf16=181.0, fp16=181.0, float32=90.5, source="NVIDIA L40 data sheet"),
    Peak(name=r"NVIDIA L40S", bf16=362.0, fp16=362.0, float32=91.6, source="NVIDIA L40S data sheet"),
    Peak(
        name=r"NVIDIA GeForce RTX 4090",
        bf16=165.2,
        fp16=165.2,
        float32=82.6,
        source="NVIDIA Ada GPU Architecture (white paper), appendix A, with FP32 accumulation",
    ),
    Peak(
        name=r"NVIDIA GeForce RTX 3090",
        bf16=71.0,
        fp16=71.0,
        float32=35.6,
        source="NVIDIA Ampere GA102 GPU Architecture (white paper), appendix A, with FP32 accumulation",
    ),
)


def peak_of(case: Case, machine: Mapping[str, Any]) -> float | None:
    """Return the peak rate (operations per second) of each of a case's GPUs; None if unknown, different or unused.

    `machine` is the contents of `machine.json`.
    """
    if case.device != "cuda":
        return None
    kind = computes_in(case, machine)
    rates = {_rate(name, kind) for name in _names(machine.get("identity", {}).get("gpus"))}
    return rates.pop() if len(rates) == 1 else None


def computes_in(case: Case, machine: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the number format of a case's matrix products, such as `bf16`, as `Peak.rate` accepts it.

    `machine` is the contents of `machine.json`, without which a user's own types are unknown (empty).
    """
    kind = case.dtype if case.precision == "full" else case.precision
    if kind == OWN_TYPES:
        kind = grouping.own_types(case, machine)
    return "bf16" if kind == "bfloat16" else kind


def _names(gpus: object) -> Sequence[str]:
    if isinstance(gpus, Mapping):
        return [name for own in gpus.values() for name in _names(own)]
    return [str(name) for name in gpus] if isinstance(gpus, list) else []


def _rate(name: str, kind: str) -> float | None:
    if "MIG" in name:  # a slice of a GPU
        return None
    return next((peak.rate(kind) for peak in PEAKS if re.fullmatch(peak.name, name)), None)


def mfu(case: Case, flops_per_sample: float | None, samples_per_s: float, peak: float | None) -> float | None:
    """Return the share of the GPUs' peak rate that training reaches; None if operations or peak are unknown."""
    if flops_per_sample is None or peak is None:
        return None
    return flops_per_sample * samples_per_s / (case.world_size * peak)
