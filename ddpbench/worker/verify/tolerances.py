"""Allowed errors: tolerances by number type and precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ddpbench.worker.training.precision import PrecisionPolicy, roundoff_of
from ddpbench.worker.training.types import NumberTypes
from ddpbench.worker.verify.values import Tensors, norm, wide

TOLERANCES: dict[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Allowed error of a gradient, which comes from a different order of addition: in float32, of the few hundred thousand
terms of a reduction.
"""
SMALL_GRADIENT = 1e-3
"""A parameter's error is relative to its own gradient's norm, or to this share of the whole gradient's norm if that is
larger. For example, a gradient that is zero in exact arithmetic (attention's key bias) is all rounding.
"""
CHANGE_TOLERANCES: dict[torch.dtype, float] = {torch.float64: 1e-6, torch.float32: 0.05}
"""Allowed error of an update's change, as one vector over all parameters. Adam divides a gradient by its own size, so
in float32 a gradient that is all rounding (attention's key bias) moves its parameters as far as any other, in either
direction. An update left out, or made from a different rank's gradient, is wrong by a tenth and more.
"""
NARROW_CHANGE_TOLERANCE = 0.5
"""Like `CHANGE_TOLERANCES`, in bfloat16 and float16, and under an autocast of the class's own, if float64 cannot be
computed. An update from the same gradients rounds alike on every rank, and an update left out is wrong by 1.
"""
AUTOCAST_ROUNDOFFS = 16
"""Allowed error of a gradient under autocast, in unit roundoffs u of the type it computes in: 2^-4 for bf16 (u = 2^-8),
2^-7 for fp16 (u = 2^-11). A step rounds every layer's outputs, slopes and gradients to u. A batch that is cut
differently rounds different sums, independently, so errors add up as a random walk: about u √(2L) for L layers, and √n
more if the gradients of n shards nearly cancel. 16 covers L = 32 at n = 4. A strategy that forgets to average, or
leaves out a rank, is wrong by a half or more.
"""
COMPRESSED_ROUNDOFFS = 8
"""Allowed error of gradients that are sent in a narrower type, in its unit roundoffs u. Each rank's share is rounded to
the type, and so is each of n - 1 partial sums, independently. The error is about u √n, and more if shares nearly
cancel. 8 covers n = 16 with a margin.
"""
MOST_COMPRESSED = 0.4
"""The largest allowed error of such gradients. Half of the sum, one of two ranks left out, or no gradient at all are
wrong by a half and more, so a tolerance that large would prove nothing.
"""
COMPRESSED_CHANGE_ROOTS = 4
"""Allowed error of an update's change, in units of √u, if gradients are sent in such a type: 0.25 for bf16, 0.09 for
fp16. Adam reverses the updates of gradients smaller than the rounding of their sum, a share of about u.
"""
MOST_COMPRESSED_CHANGE = 0.5
"""Limit of `COMPRESSED_CHANGE_ROOTS`'s error: beyond it, the change is not compared. An update left out is wrong by 1.
"""
AUTOCAST_SMALL_GRADIENT = 0.1
"""`SMALL_GRADIENT` under autocast, where a gradient that should vanish is rounding of that size."""


def relative_error(
    own: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    small: float = SMALL_GRADIENT,
    whole: torch.Tensor | None = None,
) -> float:
    """Return the largest error over parameters, relative as `SMALL_GRADIENT` says; infinite if shapes differ.

    `whole` is the whole gradient's norm, if `reference` is a part of it.
    """
    if [gradient.shape for gradient in own] != [gradient.shape for gradient in reference]:
        return float("inf")
    if whole is None:
        whole = norm(reference)
    worst = 0.0
    for mine, expected in zip(own, reference, strict=True):
        scale = torch.maximum(torch.linalg.vector_norm(wide(expected)), small * whole)
        error = float(torch.linalg.vector_norm(wide(mine) - wide(expected)) / scale)
        worst = max(worst, error) if math.isfinite(error) else float("inf")
    return worst


class Tolerances:
    """Allowed errors in one number type and precision."""

    def __init__(self, numbers: NumberTypes, precision: PrecisionPolicy, own_autocast: str = "") -> None:
        """Take `own_autocast`, the type of an autocast that the workload's loss enters itself: bf16, fp16, or empty."""
        dtype = numbers.narrowest
        narrow = torch.finfo(dtype).eps / 2 if dtype not in TOLERANCES else 0.0
        of_autocast = max(precision.unit_roundoff, roundoff_of(own_autocast))
        roundoff = max(of_autocast, narrow)
        self.gradient = AUTOCAST_ROUNDOFFS * roundoff or TOLERANCES[dtype]
        """The largest relative error of a gradient."""
        self.unwidened = self.gradient
        """`gradient` as it is without the rounding of transfers."""
        self.change = CHANGE_TOLERANCES.get(dtype)
        """The largest relative error of an update's change; None if the type doesn't resolve it."""
        self.rounds = of_autocast > 0
        """True under an autocast."""
        self._small = AUTOCAST_SMALL_GRADIENT if roundoff else SMALL_GRADIENT
        self._sent_roundoff = 0.0

    def widen(self, sent_roundoff: float) -> None:
        """Allow for gradients that are sent in a type of this unit roundoff."""
        self.gradient = max(self.gradient, min(COMPRESSED_ROUNDOFFS * sent_roundoff, MOST_COMPRESSED))
        self._sent_roundoff = sent_roundoff
        self._small = max(self._small, AUTOCAST_SMALL_GRADIENT)

    def change_after(self, change: float) -> float:
        """Return the allowed error, at least `change`, of updates from gradients that were sent in `widen`'s type.

        Infinite if it would prove nothing.
        """
        allowed = max(change, COMPRESSED_CHANGE_ROOTS * math.sqrt(self._sent_roundoff))
        return allowed if allowed <= MOST_COMPRESSED_CHANGE else math.inf

    def error(self, own: Tensors, expected: Tensors) -> float:
        """Return the largest relative error over this rank's tensors; infinite if `expected` lacks one."""
        return self.worst(own, expected)[0]

    def worst(self, own: Tensors, expected: Tensors) -> tuple[float, str]:
        """Return what `error` returns, and the name of the tensor that has it."""
        if unknown := own.keys() - expected.keys():
            return math.inf, min(unknown)
        whole = norm(list(expected.values()))
        errors = {name: relative_error([own[name]], [expected[name]], self._small, whole) for name in own}
        name = max(errors, key=lambda one: errors[one], default="")
        return errors.get(name, 0.0), name
