"""Scaling laws of one curve: fits, serial fractions, the knee, the peak, and the world size to measure next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddpbench.analysis.scaling.fits import Fit, excludes_zero, fit_of
from ddpbench.analysis.scaling.jackknife import jackknife
from ddpbench.analysis.scaling.model import EXTRAPOLATION, Law, Model
from ddpbench.analysis.scaling.next_size import NextSize, candidates, next_size, next_without_fit
from ddpbench.analysis.scaling.speedups import SpeedupCurve, speedup_of
from ddpbench.analysis.sentences import Sentence, sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import MIN_ROUNDS

MIN_POINTS = 3
"""Smallest number of world sizes, one rank included, to which laws are fitted."""
KNEE_CUT = 0.5
"""Smallest gain of an added rank, in ranks, before the knee."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LawPoint:
    """A measured world size with its speed-up and what follows from the speed-up.

    `serial_fraction` is Karp-Flatt's (strong scaling) or Gustafson's (weak scaling). `marginal` is the
    increase in speed-up per rank added since the next smaller world size (1 = perfect).
    """

    world_size: int
    speedup: Interval
    serial_fraction: Interval
    marginal: Interval
    rounds: int


_NOTHING = Sentence("")


@dataclass(frozen=True, kw_only=True, slots=True)
class Laws:
    """Results of the scaling laws for a curve. Without fits, `absent` gives the reason."""

    scaling: Literal["weak", "strong"]
    points: tuple[LawPoint, ...] = ()
    fits: tuple[Fit, ...] = ()
    refused: tuple[str, ...] = ()
    """Laws that do not apply to these data, each with the reason."""
    trend: str = ""
    """Words for the trend of the serial fractions."""
    knee: int | None = None
    """World size of the knee; None if there is none within the measured world sizes."""
    knee_words: Sentence = _NOTHING
    peak_words: str = ""
    next: NextSize | None = None
    absent: str = ""

    def fit(self, law: Law) -> Fit | None:
        """Return the fit of this law; None if the law could not be fitted."""
        return next((fit for fit in self.fits if fit.law == law), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToFit:
    """A curve to fit, with the further arguments of `fit_laws`."""

    curve: SpeedupCurve
    devices: int | None
    batch: int | None


def fit_all(curves: Sequence[ToFit]) -> list[Laws]:
    """Fit the laws of each curve; see `fit_laws`."""
    return [fit_laws(one.curve, devices=one.devices, batch=one.batch) for one in curves]


def fit_laws(curve: SpeedupCurve, *, devices: int | None = None, batch: int | None = None) -> Laws:
    """Fit all laws that apply to a curve.

    Args:
        curve: the configuration's launches by world size.
        devices: the largest number of ranks for which this machine has devices; None if unknown.
        batch: the global batch that world sizes must divide, under strong scaling.
    """
    sizes = list(curve.paired)
    refused = _refused(curve.scaling)
    if len(sizes) + 1 < MIN_POINTS:
        return Laws(
            scaling=curve.scaling,
            refused=refused,
            absent=_too_few(curve),
            next=next_without_fit(
                sizes, devices, batch, short=_short(curve), missing=MIN_POINTS - 1 - len(sizes)
            ),
        )
    model = Model(curve, candidates(sizes, devices=None, batch=batch))
    found = jackknife(curve, model.everything)
    fits = tuple(fit for fit in (fit_of(model, law, found) for law in model.laws) if fit is not None)
    fraction = found["fraction"]
    points = tuple(
        LawPoint(
            world_size=size,
            speedup=speedup_of(curve, size),
            serial_fraction=fraction.interval(index),
            marginal=found["marginal"].interval(index),
            rounds=len(curve.paired[size]),
        )
        for index, size in enumerate(sizes)
    )
    usl = next((fit for fit in fits if fit.law == "usl"), None)
    knee, knee_words = _knee(points)
    return Laws(
        scaling=curve.scaling,
        points=points,
        fits=fits,
        refused=refused,
        trend=_trend(curve.scaling, sizes, found["rise"].interval(0)),
        knee=knee,
        knee_words=knee_words,
        peak_words=_peak(usl, found["peak"].interval(0), points[-1].world_size),
        next=next_size(model, fits, found, devices),
    )


def _refused(scaling: str) -> tuple[str, ...]:
    if scaling == "strong":
        why = (
            "Gustafson's law is not fitted: it is about work that grows with the ranks (weak scaling), and here "
            "the global batch is fixed."
        )
        return (why,)
    why = (
        "Amdahl's law and Karp-Flatt's fraction are not used: they are about a fixed amount of work (strong "
        "scaling), and here it grows with the ranks."
    )
    return (why,)


def _listed(sizes: Sequence[int]) -> str:
    words = [str(size) for size in sizes]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _short(curve: SpeedupCurve) -> list[int]:
    return sorted(size for size in curve.sizes if size > 1 and size not in curve.paired)


def _too_few(curve: SpeedupCurve) -> str:
    honest = [1, *curve.paired]
    short = _short(curve)
    few = f" ({_listed(short)} with under {MIN_ROUNDS} rounds)" if short else ""
    ranks = "rank" if honest == [1] else "ranks"
    return (
        f"too few points: {_listed(honest)} {ranks} measured{few}, and a law needs {MIN_POINTS} world sizes"
    )


def _trend(scaling: str, sizes: Sequence[int], rise: Interval) -> str:
    name = "Karp-Flatt's serial fraction" if scaling == "strong" else "The serial fraction"
    where = f"from {sizes[0]} to {sizes[-1]} ranks"
    if not excludes_zero(rise):
        return f"{name} does not measurably change {where}."
    if rise.value > 0:
        return f"{name} rises {where}: it is overhead that grows with ranks, not work that cannot be divided."
    return f"{name} falls {where}: the first added ranks cost more than those that follow."


def _brought(marginal: float) -> str:
    if marginal < 0:
        return "a loss: all of them together train fewer samples/s"
    return f"only {100 * marginal:.0f} % of the samples/s that one rank trains alone"


def _knee(points: Sequence[LawPoint]) -> tuple[int | None, Sentence]:
    """Return the knee, from which an added rank brings less than `KNEE_CUT` of a rank, and a sentence on it."""
    largest = points[-1].world_size
    knee: int | None = None
    for before, point in zip([1, *(p.world_size for p in points)], points, strict=False):
        marginal = point.marginal
        if marginal.value >= KNEE_CUT:
            continue
        knee = before
        sure = (
            ""
            if marginal.high is not None and marginal.high < KNEE_CUT
            else "; the interval does not rule out half"
        )
        words = (
            f"from {before} to {point.world_size} ranks an added rank brings {_brought(marginal.value)}{sure}"
        )
        break
    else:
        last = points[-2].world_size if len(points) > 1 else 1
        shown = all(p.marginal.low is not None and p.marginal.low >= KNEE_CUT for p in points)
        words = (
            f"up to {largest} ranks an added rank brings at least {100 * KNEE_CUT:g} % of what one rank trains, "
            f"on average from one size to the next ({100 * points[-1].marginal.value:.0f} % from {last} to {largest})"
            f"{'' if shown else '; intervals do not rule out less'}"
        )
    return knee, sentence(words)


def _peak(usl: Fit | None, peak: Interval, largest: int) -> str:
    if usl is None or usl.rejected or not _positive(usl.parameters["beta"]) or not math.isfinite(peak.value):
        return ""
    if peak.value > EXTRAPOLATION * largest:
        return (
            f"By the USL throughput peaks beyond {EXTRAPOLATION * largest} ranks, too far out to say where."
        )
    ends = "" if peak.low is None or peak.high is None else f" [{peak.low:.1f}, {peak.high:.1f}]"
    label = ", an extrapolation" if peak.value > largest else ""
    return f"By the USL throughput peaks at {peak.value:.1f}{ends} ranks{label}."


def _positive(interval: Interval) -> bool:
    return excludes_zero(interval) and interval.value > 0
