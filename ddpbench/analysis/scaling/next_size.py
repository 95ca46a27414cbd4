"""Choose the world size to measure next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddpbench.analysis.scaling.fits import Fit
from ddpbench.analysis.scaling.jackknife import Estimated
from ddpbench.analysis.scaling.model import EXTRAPOLATION, LAW_NAMES, Model


@dataclass(frozen=True, kw_only=True, slots=True)
class NextSize:
    """The world size that is most useful to measure next. `here` is true if this machine has enough devices for it."""

    world_size: int
    reason: str
    here: bool = True


def candidates(sizes: Sequence[int], *, devices: int | None, batch: int | None) -> list[int]:
    """Return unmeasured world sizes to consider, up to `EXTRAPOLATION` times the largest measured size.

    These are powers of two, and the geometric mean of every pair of neighbouring sizes. Under strong scaling, each
    candidate divides the batch.
    """
    known = sorted({1, *sizes})
    limit = EXTRAPOLATION * known[-1]
    powers = [1 << k for k in range(limit.bit_length())]
    between = [round(math.sqrt(a * b)) for a, b in pairwise(known)]
    return sorted(
        n
        for n in {*powers, *between}
        if n <= limit
        and n not in known
        and (devices is None or n <= devices)
        and (batch is None or batch % n == 0)
    )


def next_without_fit(
    sizes: Sequence[int],
    devices: int | None,
    batch: int | None,
    *,
    short: Sequence[int] = (),
    missing: int = 1,
) -> NextSize | None:
    """Choose the size for the next point of a curve that has too few points for a law.

    The choice is a size with too few rounds, the next power of two, or a size between two points.

    Args:
        sizes: the world sizes that are points, except 1.
        devices: the largest number of ranks for which this machine has devices; None if unknown.
        batch: the global batch that world sizes must divide, under strong scaling.
        short: the world sizes with too few rounds for a point, in order.
        missing: number of points that a law lacks.
    """
    needs = f"a law needs {'one more point' if missing == 1 else f'{missing} more points'}"
    if short:
        reason = f"with more rounds it is a point, and {needs}"
        return NextSize(world_size=short[0], reason=reason, here=devices is None or short[0] <= devices)
    measured = [*sizes] or [1]
    here = candidates(measured, devices=devices, batch=batch)
    beyond = candidates(measured, devices=None, batch=batch)
    found = here or beyond
    if not found:
        return None
    reason = f"it is the next power of two, and {needs}"
    if found[-1].bit_count() != 1:
        reason = f"it lies between those measured, and {needs}"
    return NextSize(world_size=found[-1], reason=reason, here=bool(here))


def next_size(
    model: Model, fits: Sequence[Fit], estimates: Mapping[str, Estimated], devices: int | None
) -> NextSize | None:
    """Return the size at which the laws disagree most, or at which a law is least certain.

    None if only rejected laws remain, or none has a forecast.
    """
    usable = [n for n in model.candidates if devices is None or n <= devices] or model.candidates
    largest = int(model.sizes[-1])
    fits = [fit for fit in fits if not fit.rejected]
    best: tuple[float, int, str] | None = None
    for n in usable:
        index = model.candidates.index(n)
        label = ", extrapolated" if n > largest else ""
        said = {fit.law: estimates[f"{fit.law} ahead"].interval(index) for fit in fits}
        said = {law: one for law, one in said.items() if math.isfinite(one.value)}
        options: list[tuple[float, str]] = []
        if len(said) == 2:
            (a, first), (b, second) = said.items()
            reason = (
                f"there the laws disagree most: {LAW_NAMES[a]} gives a speed-up of {math.exp(first.value):.2f} and "
                f"{LAW_NAMES[b]} {math.exp(second.value):.2f}{label}"
            )
            options.append((abs(first.value - second.value), reason))
        for law, one in said.items():
            if one.low is not None and one.high is not None and (law == "usl" or len(said) == 1):
                reason = (
                    f"there {LAW_NAMES[law]} is least sure of itself: a speed-up between "
                    f"{math.exp(one.low):.2f} and {math.exp(one.high):.2f}{label}"
                )
                options.append(((one.high - one.low) / 2, reason))
        for score, reason in options:
            if best is None or score > best[0]:
                best = (score, n, reason)
    if best is None:
        return None
    return NextSize(world_size=best[1], reason=best[2], here=devices is None or best[1] <= devices)
