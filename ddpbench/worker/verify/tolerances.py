"""Allowed errors of comparisons, by number type and precision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ddpbench.worker.training.precision import PrecisionPolicy, roundoff_of
from ddpbench.worker.training.types import NumberTypes
from ddpbench.worker.verify.values import Tensors, norm, wide

TOLERANCES: dict[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Allowed relative error of a gradient, by number type. Errors come from a different order of addition. The value for
float32 allows for reductions of a few hundred thousand terms.
"""
SMALL_GRADIENT = 1e-3
"""Least divisor of a parameter's error, as a fraction of the norm of all gradients together. If the norm of the
parameter's own gradient is larger, the error is divided by that norm. A gradient that is zero in exact arithmetic, such
as that of attention's key bias, consists of rounding errors only.
"""
CHANGE_TOLERANCES: dict[torch.dtype, float] = {torch.float64: 1e-6, torch.float32: 0.05}
"""Allowed relative error of the change that updates make, as one vector over all parameters, by number type. Adam
divides a gradient by its own size. So in float32 a gradient of rounding errors only (attention's key bias) moves its
parameters as far as any other gradient, in either direction. If the error is larger, rounding is measured
(`ddpbench.worker.verify.perturbed`), and numbers whose errors rounding explains are left out. An update that is
missing, or made from another rank's gradient, is wrong by a tenth or more.
"""
NARROW_CHANGE_TOLERANCE = 0.5
"""Like `CHANGE_TOLERANCES`, for bfloat16, float16 and a class's own autocast, used if float64 cannot be computed.
Updates from the same gradients are rounded equally on every rank, and an update that is left out is wrong by 1.
"""
AUTOCAST_ROUNDOFFS = 16
"""Allowed relative error of a gradient under autocast, in unit roundoffs u of autocast's type: 2^-4 for bf16 (u =
2^-8), 2^-7 for fp16 (u = 2^-11). A step rounds every layer's outputs, slopes and gradients to u. If a batch is split
differently, different sums are rounded, independently, so errors add up as a random walk. The error is about u √(2L)
for L layers, and √n times as large if the gradients of n shards nearly cancel. 16 covers L = 32 at n = 4. A strategy
that forgets to average, or leaves out a rank, is wrong by a half or more.
"""
COMPRESSED_ROUNDOFFS = 8
"""Allowed relative error of gradients that are sent in a narrower type, in that type's unit roundoffs u. Each of the n
ranks' gradients is rounded to the type, and so is each of n - 1 partial sums, independently. The error is about u √n,
and more if the ranks' gradients nearly cancel. 8 covers n = 16 with a margin.
"""
MOST_COMPRESSED = 0.4
"""Upper limit of the allowed relative error of gradients sent in a narrower type. An average that lacks one of two
ranks, is half of the correct average, or is zero has an error of a half or more. So a tolerance of a half would prove
nothing.
"""
COMPRESSED_CHANGE_ROOTS = 4
"""Allowed relative error of the change that updates make if gradients are sent in a type of unit roundoff u, in units
of √u: 0.25 for bf16, 0.09 for fp16. Adam may reverse the updates of gradients that are smaller than the rounding errors
of their sum, which are about a fraction u of the gradients.
"""
MOST_COMPRESSED_CHANGE = 0.5
"""Upper limit of the error allowed by `COMPRESSED_CHANGE_ROOTS`. If the allowed error would be larger, changes are not
compared, because an update that is left out is wrong by only 1.
"""
AUTOCAST_SMALL_GRADIENT = 0.1
"""`SMALL_GRADIENT` under autocast, where a gradient that is zero in exact arithmetic has rounding errors of this
size.
"""
MOST_SMALL_GRADIENT = 1.0
"""Upper limit of `SMALL_GRADIENT` when it is raised for measured rounding (`Tolerances.allow_rounding`). In float32, an
error of more than 1e-4 of the norm of all gradients together is never attributed to rounding.
"""


def relative_error(
    own: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    small: float = SMALL_GRADIENT,
    whole: torch.Tensor | None = None,
) -> float:
    """Return the largest relative error of any tensor in `own`; infinite if shapes differ.

    An error is divided by the norm of the tensor in `reference`, or by `small` times `whole` if that is larger. `whole`
    is the norm of all parameters together (default: of `reference`).
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
    """Allowed relative errors in one number type and precision."""

    def __init__(self, numbers: NumberTypes, precision: PrecisionPolicy, own_autocast: str = "") -> None:
        """Set the tolerances. `own_autocast` is the autocast type that the workload's loss itself enters, or empty."""
        dtype = numbers.narrowest
        narrow = torch.finfo(dtype).eps / 2 if dtype not in TOLERANCES else 0.0
        of_autocast = max(precision.unit_roundoff, roundoff_of(own_autocast))
        roundoff = max(of_autocast, narrow)
        self.gradient = AUTOCAST_ROUNDOFFS * roundoff or TOLERANCES[dtype]
        """Largest allowed relative error of a gradient."""
        self.unwidened = self.gradient
        """Value of `gradient` before `widen`."""
        self.change = CHANGE_TOLERANCES.get(dtype)
        """Largest allowed relative error of the change that updates make; None if the number type is too coarse for
        that.
        """
        self.rounds = of_autocast > 0
        """True if the case or the workload's loss uses autocast."""
        self._small = AUTOCAST_SMALL_GRADIENT if roundoff else SMALL_GRADIENT
        self._rounding: dict[str, float] = {}
        self._sent_roundoff = 0.0

    def widen(self, sent_roundoff: float) -> None:
        """Raise the allowed errors for gradients that are sent in a type with this unit roundoff."""
        self.gradient = max(self.gradient, min(COMPRESSED_ROUNDOFFS * sent_roundoff, MOST_COMPRESSED))
        self._sent_roundoff = sent_roundoff
        self._small = max(self._small, AUTOCAST_SMALL_GRADIENT)

    def change_after(self, change: float) -> float:
        """Return the allowed relative error of a change by updates, with gradients rounded as in `widen`.

        It is at least `change`, and infinite if a comparison would prove nothing.
        """
        allowed = max(change, COMPRESSED_CHANGE_ROOTS * math.sqrt(self._sent_roundoff))
        return allowed if allowed <= MOST_COMPRESSED_CHANGE else math.inf

    @property
    def most_rounding(self) -> float:
        """Return the largest error that `allow_rounding` can bring within the tolerance.

        Tolerances that include a narrower type's rounding are not raised further.
        """
        return self.gradient * (MOST_SMALL_GRADIENT / self._small if self._small == SMALL_GRADIENT else 1.0)

    def allow_rounding(self, rounding: Mapping[str, float]) -> None:
        """Also allow these errors of parameters' gradients, as fractions of the norm of all gradients together."""
        self._rounding = dict(rounding)

    def _small_of(self, name: str) -> float:
        """Return the least norm to divide a parameter's error by, as a fraction of all gradients' norm."""
        measured = self._rounding.get(name, 0.0) / self.gradient
        return max(self._small, min(measured, MOST_SMALL_GRADIENT))

    def error(self, own: Tensors, expected: Tensors) -> float:
        """Return the largest relative error of any tensor in `own`; infinite if a name is missing in `expected`."""
        return self.worst(own, expected)[0]

    def worst(self, own: Tensors, expected: Tensors) -> tuple[float, str]:
        """Return the largest relative error of any tensor of `own`, and that tensor's name.

        The error is infinite if `expected` lacks a name.
        """
        if unknown := own.keys() - expected.keys():
            return math.inf, min(unknown)
        whole = norm(list(expected.values()))
        errors = {
            name: relative_error([own[name]], [expected[name]], self._small_of(name), whole) for name in own
        }
        name = max(errors, key=lambda one: errors[one], default="")
        return errors.get(name, 0.0), name
