"""Decide whether rounding alone explains how averaged gradients differ from exact ones: in scale, by rank, and in size.

A hook rounds each rank's gradient g_r to a type of unit roundoff u, and perhaps the n - 1 partial sums. A number's
errors are at most u of it, and independent: as uniform ones in ±u they have a variance of u²/3, and types that round
to nearest have less. With q² the mean over ranks of g_r², and a partial sum of k ranks at most k n q² in square, the
error e of the average g has in each number a variance of at most v = n u² q² / 3:

    (n q² + n q² (2 + ... + n)) / n² = q² (n + 1) / 2 for n > 1, and q² for n = 1: at most n q².

- Scale: the factor that fits the result best to g is 1 + <e, g> / |g|². Errors are averaged out in it, to a deviation
  of √(Σ v g²) / |g|². Rounding toward zero also shrinks all numbers: by half of a last place on average, which is u/2
  of a number just above a power of two, and u/4 of one just below. So u/2 is allowed, and `DEVIATIONS`. It is
  allowed once: hooks that round each partial sum toward zero exceed it at 4 ranks.
- Each rank's weight: the part d of a rank's gradient that is orthogonal to g cancels in the average. A rank whose
  weight is w instead of 1, while all weights are 1 on average, puts (w - 1) / (n - 1) times d into it, if the ranks'
  parts are independent. The deviation is √(Σ v d²) / |d|²; u/2 is allowed as well, for ranks whose numbers shrink by
  other shares.
- Size: the root of Σ v, and u/2 of |g|, together bound |e|. Only types so coarse that parameters are not compared are
  held to it: where gradients are smaller than a type's normal numbers, as fp16's, its errors are larger than u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ddpbench.records import ComparedQuantity
from ddpbench.worker.verify.values import Tensors, wide

OF_ROUNDING: tuple[ComparedQuantity, ...] = (
    "gradients, scale",
    "gradients, each rank's weight",
    "gradients, size of rounding",
)
DEVIATIONS = 4
"""Standard deviations of averaged rounding errors that are allowed; normally distributed errors exceed 4 in 6 of
100,000.
"""
LARGEST_BIAS = 0.5
"""Largest mean error of one rounding, in unit roundoffs u."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """The distance of a result from exact gradients in one respect, and its bound."""

    compared: ComparedQuantity
    error: float
    allowed: float

    @property
    def share(self) -> float:
        """Return the error as a share of what is allowed."""
        return self.error / self.allowed if math.isfinite(self.error) else math.inf


@dataclass(frozen=True, slots=True)
class Sent:
    """The rounding of what a hook sends."""

    ranks: int
    roundoff: float
    """Unit roundoff u of the type in which gradients are sent."""
    floor: float
    """Allowed error of a whole gradient without this rounding."""
    coarse: bool
    """True if the type is so coarse that parameters are not compared; then the size of errors is."""


def deviations(
    sent: Sent, result: Tensors, own: Tensors, exact: Tensors, squares: Tensors
) -> list[Deviation]:
    """Return how far `result`, an average over ranks, is from `exact`, and how much of that rounding explains.

    `own` is this rank's gradient, and `squares` the mean over ranks of the gradients' squared numbers. Empty if `exact`
    is 0.
    """
    total: dict[str, float] = dict.fromkeys(
        ("gg", "eg", "ee", "q", "qgg", "dg", "dd", "ed", "qdg", "qdd"), 0.0
    )
    for name, value in exact.items():
        g, q = real(value), squares[name]
        e, d = real(result[name]) - g, real(own[name]) - g
        products = (g * g, e * g, e * e, q, q * g * g, d * g, d * d, e * d, q * d * g, q * d * d)
        for key, product in zip(total, products, strict=True):
            total[key] += float(product.sum())
    if not total["gg"]:
        return []
    bias, deviation = LARGEST_BIAS * sent.roundoff, sent.roundoff * math.sqrt(sent.ranks / 3)
    whole, shares = total["gg"], math.sqrt(total["q"] / total["gg"])
    scale = abs(total["eg"]) / whole
    allowed = sent.floor + bias + DEVIATIONS * deviation * math.sqrt(total["qgg"]) / whole
    found = [Deviation("gradients, scale", scale, allowed)]
    along = total["dg"] / whole
    beyond = total["dd"] - along * total["dg"]
    if sent.ranks > 1 and beyond > 1e-6 * whole:
        others = sent.ranks - 1
        weight = others * abs(total["ed"] - along * total["eg"]) / beyond
        varied = max(total["qdd"] - 2 * along * total["qdg"] + along**2 * total["qgg"], 0.0)
        floor = sent.floor * shares * math.sqrt(whole / beyond)
        allowed = bias + others * (floor + DEVIATIONS * deviation * math.sqrt(varied) / beyond)
        found.append(Deviation("gradients, each rank's weight", weight, allowed))
    if sent.coarse:
        size = math.sqrt(total["ee"] / whole)
        found.append(Deviation("gradients, size of rounding", size, sent.floor + bias + deviation * shares))
    return found


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision, each complex number as two real ones."""
    return torch.view_as_real(wide(tensor)) if tensor.is_complex() else wide(tensor)
