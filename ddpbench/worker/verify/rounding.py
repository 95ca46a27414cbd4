"""Decide whether rounding alone explains the difference between averaged and exact gradients.

The difference is judged in three respects: scale, each rank's weight, and size. A communication hook rounds each rank's
gradient g_r to a type of unit roundoff u, and perhaps the n - 1 partial sums too. The rounding error of a number is at
most u times the number, and errors are independent. Errors uniform in ±u have a variance of u²/3, and types that round
to nearest have less. Let q² be the mean over ranks of g_r². A partial sum of k ranks has a square of at most k n q².
Each number of the average g then has an error e with a variance of at most v = n u² q² / 3, because

    (n q² + n q² (2 + ... + n)) / n² = q² (n + 1) / 2 for n > 1, and q² for n = 1: at most n q².

- Scale: the factor that best fits the result to g is 1 + <e, g> / |g|². Errors average out in this factor, to a
  standard deviation of √(Σ v g²) / |g|². Rounding toward zero also shrinks all numbers by half of a last place on
  average, which is u/2 of a number just above a power of two, and u/4 of a number just below one. So an error of
  u/2 plus `DEVIATIONS` standard deviations is allowed. The u/2 is allowed once, so hooks that round each partial sum
  toward zero exceed the bound at 4 ranks.
- Each rank's weight: the part d of a rank's gradient that is orthogonal to g cancels in the average. Suppose that one
  rank has the weight w instead of 1, and that all weights are 1 on average. Then (w - 1) / (n - 1) times d remains in
  the average, if the ranks' parts d are independent. The standard deviation is √(Σ v d²) / |d|². Again u/2 is added,
  because ranks' numbers may shrink by different fractions.
- Size: |e| is at most the root of Σ v plus u/2 of |g|. This bound is applied only to types so coarse that parameters
  are not compared. Where gradients are smaller than a type's normal numbers, as in fp16, errors are larger than u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ddpbench.records import ComparedQuantity
from ddpbench.worker.verify.values import Tensors, wide

OF_SIZE: ComparedQuantity = "gradients, size of rounding"
OF_ROUNDING: tuple[ComparedQuantity, ...] = ("gradients, scale", "gradients, each rank's weight", OF_SIZE)
DEVIATIONS = 4
"""Allowed number of standard deviations of averaged rounding errors. Normally distributed errors exceed 4 standard
deviations in 6 of 100,000 cases.
"""
LARGEST_BIAS = 0.5
"""Largest mean error of one rounding, in unit roundoffs u."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """The deviation of a strategy's gradients from exact gradients in one respect, and how much of it is allowed."""

    compared: ComparedQuantity
    error: float
    allowed: float

    @property
    def share(self) -> float:
        """Return the error divided by the allowed error; infinite if the error is not finite."""
        return self.error / self.allowed if math.isfinite(self.error) else math.inf


@dataclass(frozen=True, slots=True)
class Sent:
    """Describes how a communication hook rounds the gradients that it sends."""

    ranks: int
    roundoff: float
    """Unit roundoff u of the type in which gradients are sent."""
    floor: float
    """Allowed relative error of a gradient without this rounding."""
    coarse: bool
    """True if the type is so coarse that parameters cannot be compared, so that the size of errors is checked too."""


def deviations(
    sent: Sent, result: Tensors, own: Tensors, exact: Tensors, squares: Tensors
) -> list[Deviation]:
    """Return how far `result`, a strategy's average over ranks, deviates from `exact`, and how much rounding explains.

    `own` is this rank's gradient, and `squares` is the mean over ranks of their squared gradients. The list is empty if
    `exact` is all zero.
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
        found.append(Deviation(OF_SIZE, size, sent.floor + bias + deviation * shares))
    return found


def roundoff_of(sent: Sent, error: float, exact: torch.Tensor, squares: torch.Tensor) -> float:
    """Return the unit roundoff at which rounding would cause an error as large as `error`.

    Args:
        sent: the strategy's own description of its rounding; only `ranks` and `floor` are used.
        error: the relative error of a parameter's average.
        exact: the exact average of the parameter's gradient.
        squares: the mean over ranks of its squared gradients.
    """
    whole = float((real(exact) ** 2).sum())
    if not whole:
        return math.inf
    shares = math.sqrt(float(squares.sum()) / whole)
    return max(error - sent.floor, 0.0) / (LARGEST_BIAS + math.sqrt(sent.ranks / 3) * shares)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision, with each complex number as two real numbers."""
    return torch.view_as_real(wide(tensor)) if tensor.is_complex() else wide(tensor)
