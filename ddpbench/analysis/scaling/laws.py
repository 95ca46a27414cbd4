"""Scaling laws fitted to one curve: Amdahl, Gustafson, Karp-Flatt, USL; the knee; what to measure next.

A curve is one configuration at several world sizes. Its speed-ups are those of the whole report: samples/s
over the base case's, `single` at one rank, paired within rounds. The base case therefore is the curve's point
at world size 1; a strategy's own case at one rank is not fitted, for it would make a second one.

- Amdahl, AFIPS 1967, strong scaling only (a fixed amount of work): S(n) = 1 / (s + (1-s)/n).
- Gustafson, CACM 31 (1988), weak scaling only (work grows with n): S(n) = n - s(n-1).
- Karp & Flatt, CACM 33 (1990), strong: e(n) = (1/S - 1/n) / (1 - 1/n) at each point. Under weak scaling that
  number falls with n even where ranks lose ever more, so there Gustafson's own fraction, (n-S)/(n-1), stands in.
- Gunther, "Guerrilla Capacity Planning" (2007), the Universal Scalability Law, on either:
  X(n) = gamma n / (1 + alpha(n-1) + beta n(n-1)), largest at n* = sqrt((1-alpha)/beta).

All of them are linear in their parameters, or in the parameters times 1/gamma, once the reciprocal is taken: the
fits are weighted linear least squares, which has no starting values to choose and no minimum to miss. Weights are
those of relative errors, which taking the reciprocal leaves as they are to first order; each point's is mixed with
the mean of all, for an error known from five rounds is itself a guess. Parameters may leave their
sensible range (a negative alpha is what superlinear speed-up looks like), and words say so; but a beta that would
be negative is held at 0, or the USL would forecast that efficiency recovers.

Rounds are what is replicated, so intervals come from leaving out one round at a time and fitting again (the
jackknife; Tukey 1958; Efron & Stein 1981). Where every round has every world size that is to first order the
t-interval over one fit a round; but it also holds where no round has them all, as in a merge of several
allocations, and unlike a bootstrap over five rounds it is not too narrow. Rounds with the same world sizes form
a stratum; Satterthwaite's formula gives the degrees of freedom over strata. Residuals and forecasts get their
intervals in the same way, with all that correlates them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ddpbench.analysis.statistics.stats import (
    ALPHA,
    MIN_ROUNDS,
    Interval,
    Pair,
    Timing,
    compare,
    pairs,
    samples_rate,
)

MIN_POINTS = 3
"""World sizes, one rank among them, under which nothing is fitted."""
EXTRAPOLATION = 2
"""Nothing is forecast beyond this many times the largest measured world size."""
KNEE_CUT = 0.5
"""The knee is the last world size up to which an added rank brings at least this much of a rank."""
_LINE_POINTS = 49
_PRIOR_ROUNDS = 30
"""The points' mean error counts as if known from so many rounds, beside each point's own."""
_EXACT = 1e-9
"""Smaller than this is rounding: no misfit, and no parameter other than 0."""

Law = Literal["amdahl", "gustafson", "usl"]
LAW_NAMES: Mapping[Law, str] = {
    "amdahl": "Amdahl's law",
    "gustafson": "Gustafson's law",
    "usl": "the Universal Scalability Law",
}
Goodness = Literal["within error", "beyond error", "undetermined"]
_Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One configuration's launches by world size above one, each world size with cores of its own.

    `base` are the base case's launches; those that share no round with it are not used.
    """

    scaling: Literal["weak", "strong"]
    base: tuple[Timing, ...]
    sizes: Mapping[int, tuple[Timing, ...]]

    @cached_property
    def paired(self) -> dict[int, dict[Pair, tuple[Timing, Timing]]]:
        """By world size and round its timing and the base case's, where there are enough rounds of both."""
        found = {
            size: {own.pair: (own, base) for own, base in pairs(timings, self.base)}
            for size, timings in sorted(self.sizes.items())
            if size > 1
        }
        return {size: both for size, both in found.items() if len(both) >= MIN_ROUNDS}

    @cached_property
    def strata(self) -> list[list[Pair]]:
        """The rounds in groups of the same world sizes; one that is alone joins the largest group.

        What two sessions ran of one round is two.
        """
        groups: dict[tuple[int, ...], list[Pair]] = {}
        for one in sorted({one for both in self.paired.values() for one in both}):
            groups.setdefault(tuple(n for n, both in self.paired.items() if one in both), []).append(one)
        largest = max(groups.values(), key=len, default=[])
        lonely = [group for group in groups.values() if len(group) == 1 and group is not largest]
        largest += [number for group in lonely for number in group]
        return [group for group in groups.values() if group not in lonely]

    def log_speedups(self, without: Pair | None = None) -> _Array:
        """Return the logarithm of each paired world size's speed-up, all rounds but one."""
        logs = []
        for both in self.paired.values():
            kept = [pair for one, pair in both.items() if one != without]
            comparison = compare([own for own, _ in kept], [base for _, base in kept])
            assert comparison is not None  # MIN_ROUNDS of them, less one
            logs.append(-comparison.log)
        return np.array(logs, np.float64)

    def log_base_rate(self, without: Pair | None = None) -> float:
        """Return the logarithm of the base case's samples/s, all rounds but one."""
        return math.log(samples_rate([one for one in self.base if one.pair != without]).value)


@dataclass(frozen=True, kw_only=True, slots=True)
class LawPoint:
    """A measured world size. `serial_fraction` is Karp-Flatt's (strong) or Gustafson's (weak).

    `marginal` is what each rank added since the next smaller world size brought, in ranks.
    """

    world_size: int
    speedup: Interval
    serial_fraction: Interval
    marginal: Interval
    rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A law fitted to a curve.

    `parameters`: `s`, a fraction; or `alpha`, `beta`, and `gamma` in samples/s. `residuals` are the law's
    speed-up over the measured one, minus 1, by world size. `line` are (world size, speed-up) up to
    `EXTRAPOLATION` times the largest measured world size. `goodness` asks whether some residual's interval,
    corrected for their number (Bonferroni), excludes 0; it is undetermined where no point is left to ask, or where
    none does and one has no interval. `unseen` is the largest misfit, a fraction, that those intervals leave open.
    """

    law: Law
    parameters: Mapping[str, Interval]
    residuals: Mapping[int, Interval]
    goodness: Goodness
    r_squared: float | None
    unseen: float | None
    line: tuple[tuple[float, float], ...]
    remarks: tuple[str, ...] = ()

    @property
    def worst(self) -> tuple[int, float]:
        """The world size with the largest residual, and that residual."""
        size = max(self.residuals, key=lambda n: abs(self.residuals[n].value))
        return size, self.residuals[size].value

    @property
    def verdict(self) -> str:
        """Its goodness in words."""
        size, residual = self.worst
        off = f"off by {_percent(residual)} at most, at {size} rank{'s' if size != 1 else ''}"
        if self.goodness == "within error":
            hidden = (
                "" if self.unseen is None else f"; a misfit of up to {_percent(self.unseen)} would go unseen"
            )
            return f"fits within the measurement's error ({off}{hidden})"
        if self.goodness == "beyond error":
            return f"does not fit ({off}, more than the measurement's error)"
        if any(one.low is None for one in self.residuals.values()):
            return "cannot be judged: without one of the rounds it has no speed-up at some world size"
        return "has as many parameters as there are points: nothing is left to judge it by"


@dataclass(frozen=True, kw_only=True, slots=True)
class NextSize:
    """The world size most worth measuring next; `here` says whether this machine has the devices for it."""

    world_size: int
    reason: str
    here: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Laws:
    """What laws make of a curve. Without fits `absent` says why."""

    scaling: Literal["weak", "strong"]
    points: tuple[LawPoint, ...] = ()
    fits: tuple[Fit, ...] = ()
    refused: tuple[str, ...] = ()
    """The laws that are about other data, each with the reason."""
    trend: str = ""
    """What the serial fractions say."""
    knee: int | None = None
    """The knee, where there is one within the measured world sizes."""
    knee_words: str = ""
    peak_words: str = ""
    next: NextSize | None = None
    absent: str = ""

    def fit(self, law: Law) -> Fit | None:
        """Return the fit of one law, if it could be made."""
        return next((fit for fit in self.fits if fit.law == law), None)


def fit_laws(curve: Curve, *, devices: int | None = None, batch: int | None = None) -> Laws:
    """Fits what may be fitted to a curve.

    Args:
        curve: its launches.
        devices: the most ranks this machine has devices for; None where that is not known.
        batch: the global batch that world sizes must divide, under strong scaling.
    """
    sizes = list(curve.paired)
    refused = _refused(curve.scaling)
    if len(sizes) + 1 < MIN_POINTS:
        return Laws(
            scaling=curve.scaling,
            refused=refused,
            absent=_too_few(curve),
            next=_next_without_fit(sizes, devices, batch),
        )
    model = _Model(curve, _candidates(sizes, devices=None, batch=batch))
    found = _jackknife(curve, model.everything)
    fits = tuple(fit for fit in (_fit(model, law, found) for law in model.laws) if fit is not None)
    fraction = found["fraction"]
    points = tuple(
        LawPoint(
            world_size=size,
            speedup=_speedup(curve, size),
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
        next=_next(model, fits, found, devices),
    )


@dataclass(frozen=True, slots=True)
class _Estimated:
    """Quantities estimated from all rounds, with their standard errors and degrees of freedom."""

    value: _Array
    error: _Array
    df: _Array

    def interval(self, index: int, alpha: float = ALPHA) -> Interval:
        """Return the t-interval of one of them; without ends where it is not defined."""
        value = float(self.value[index])
        half = float(special.stdtrit(self.df[index], 1 - alpha / 2) * self.error[index])
        if not math.isfinite(value) or not math.isfinite(half):
            return Interval(value=value)
        return Interval(value=value, low=value - half, high=value + half)


def _jackknife(
    curve: Curve, statistic: Callable[[Pair | None], Mapping[str, _Array]]
) -> dict[str, _Estimated]:
    """Return every quantity that `statistic` gives for all rounds but one, with its error over rounds."""
    whole = statistic(None)
    left = {one: statistic(one) for stratum in curve.strata for one in stratum}
    found: dict[str, _Estimated] = {}
    for name, value in whole.items():
        variance, spread = np.zeros_like(value), np.zeros_like(value)
        for stratum in curve.strata:
            count = len(stratum)
            parts = np.array([left[one][name] for one in stratum])
            own = (count - 1) / count * ((parts - parts.mean(axis=0)) ** 2).sum(axis=0)
            variance += own
            spread += own**2 / (count - 1)
        least = float(sum(len(stratum) - 1 for stratum in curve.strata))
        df = np.divide(variance**2, spread, out=np.full_like(variance, least), where=spread > 0)
        found[name] = _Estimated(value, np.sqrt(variance), df)
    return found


class _Model:
    """The laws of one curve: fits them to all rounds, or to all but one, with the same weights."""

    def __init__(self, curve: Curve, candidates: Sequence[int]) -> None:
        self.curve = curve
        self.candidates = list(candidates)
        self.sizes = np.array(list(curve.paired), np.float64)
        self.all_sizes = np.concatenate([[1.0], self.sizes])
        self.laws: tuple[Law, ...] = ("amdahl" if curve.scaling == "strong" else "gustafson", "usl")
        self.limit = EXTRAPOLATION * float(self.sizes[-1])
        self.grid = np.unique(np.concatenate([np.geomspace(1, self.limit, _LINE_POINTS), self.all_sizes]))
        errors = np.array([_standard_error(curve, size) for size in curve.paired])
        # Weights from few rounds chase chance, and intervals then are too narrow (88 % for 95 at five rounds).
        trust = np.array([len(both) - 1 for both in curve.paired.values()], np.float64)
        mixed = np.sqrt((trust * errors**2 + _PRIOR_ROUNDS * np.mean(errors**2)) / (trust + _PRIOR_ROUNDS))
        self.sigma = np.maximum(mixed, 1e-3 if not mixed.any() else 1e-3 * float(mixed.max()))
        # the base case's error is in every speed-up; as a point of the USL it weighs as the middle one of them
        self.sigma_all = np.concatenate([[float(np.median(self.sigma))], self.sigma])
        self.beta_held = False
        logs, log_base = curve.log_speedups(), curve.log_base_rate()
        self.beta_held = bool(self.parameters("usl", logs, log_base)[1] < -_EXACT)

    def parameters(self, law: Law, logs: _Array, log_base: float) -> _Array:
        """`s`; or `alpha, beta, gamma` (samples/s)."""
        n, speedup = self.sizes, np.exp(logs)
        if law == "amdahl":
            x, y, weight = 1 - 1 / n, 1 / speedup - 1 / n, speedup / self.sigma
        elif law == "gustafson":
            x, y, weight = n - 1, n - speedup, 1 / (speedup * self.sigma)
        else:
            return self._usl(np.concatenate([[1.0], speedup]), log_base)
        return np.array([float(np.sum(weight**2 * x * y) / np.sum(weight**2 * x * x))])

    def _usl(self, speedup: _Array, log_base: float) -> _Array:
        n = self.all_sizes
        y = n / speedup
        weight = 1 / (y * self.sigma_all)
        columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1)[:, : 2 if self.beta_held else 3]
        one, *others = np.linalg.lstsq(columns * weight[:, None], y * weight, rcond=None)[0]
        if one <= 0:
            return np.full(3, np.nan)
        alpha, beta = (*(other / one for other in others), 0.0)[:2]
        return np.array([alpha, beta, math.exp(log_base) / one])

    def log_speedup(self, law: Law, parameters: _Array, n: _Array, log_base: float) -> _Array:
        """Return what the law says, as a logarithm; NaN where it has no positive speed-up."""
        if law == "amdahl":
            value = parameters[0] + (1 - parameters[0]) / n
            return -_log(value)
        if law == "gustafson":
            return _log(n - parameters[0] * (n - 1))
        alpha, beta, gamma = parameters
        return _log(n * gamma) - _log(1 + alpha * (n - 1) + beta * n * (n - 1)) - log_base

    def everything(self, without: Pair | None) -> dict[str, _Array]:
        """Return all quantities that get an interval, from all rounds but one."""
        logs = self.curve.log_speedups(without)
        log_base = self.curve.log_base_rate(without)
        n, speedup = self.sizes, np.exp(logs)
        strong = self.curve.scaling == "strong"
        fraction = (1 / speedup - 1 / n) / (1 - 1 / n) if strong else (n - speedup) / (n - 1)
        found: dict[str, _Array] = {
            "fraction": fraction,
            "rise": fraction[-1:] - fraction[:1],
            "marginal": np.diff(np.concatenate([[1.0], speedup])) / np.diff(self.all_sizes),
        }
        for law in self.laws:
            parameters = self.parameters(law, logs, log_base)
            sizes, measured = (n, logs) if law != "usl" else (self.all_sizes, np.concatenate([[0.0], logs]))
            found[law] = parameters
            if law == "usl":
                found["peak"] = np.array([_peak_at(float(parameters[0]), float(parameters[1]))])
            found[f"{law} residual"] = self.log_speedup(law, parameters, sizes, log_base) - measured
            ahead = np.array(self.candidates, np.float64)
            found[f"{law} ahead"] = self.log_speedup(law, parameters, ahead, log_base)
        return found


def _peak_at(alpha: float, beta: float) -> float:
    return math.sqrt((1 - alpha) / beta) if beta > 0 and alpha < 1 else math.nan


def _log(values: _Array) -> _Array:
    return np.log(values, out=np.full_like(values, np.nan), where=values > 0)


def _standard_error(curve: Curve, size: int) -> float:
    both = curve.paired[size].values()
    comparison = compare([own for own, _ in both], [base for _, base in both])
    assert comparison is not None
    return comparison.standard_error or 0.0


def _speedup(curve: Curve, size: int) -> Interval:
    both = curve.paired[size].values()
    comparison = compare([own for own, _ in both], [base for _, base in both])
    assert comparison is not None
    return comparison.rate_ratio()


_PARAMETERS: Mapping[Law, tuple[str, ...]] = {
    "amdahl": ("s",),
    "gustafson": ("s",),
    "usl": ("alpha", "beta", "gamma"),
}


def _fit(model: _Model, law: Law, found: Mapping[str, _Estimated]) -> Fit | None:
    """Return the fit of a law, or None where the data give none."""
    estimated, off = found[law], found[f"{law} residual"]
    if not np.isfinite(estimated.value).all() or not np.isfinite(off.value).all():
        return None
    sizes = [int(n) for n in (model.all_sizes if law == "usl" else model.sizes)]
    log_base = model.curve.log_base_rate()
    measured = np.exp(model.curve.log_speedups())
    speedup = np.concatenate([[1.0], measured]) if law == "usl" else measured
    predicted = speedup * np.exp(off.value)
    spread = float(((speedup - speedup.mean()) ** 2).sum())
    goodness: Goodness = "undetermined"
    unseen: float | None = None
    if len(sizes) > len(estimated.value) - (law == "usl" and model.beta_held):
        level = ALPHA / len(sizes)
        asked = [off.interval(index, level) for index in range(len(sizes))]
        ends = [abs(end) for one in asked for end in (one.low, one.high) if end is not None]
        if any(_excludes_zero(one) for one in asked):
            goodness = "beyond error"
        elif len(ends) == 2 * len(asked):
            goodness, unseen = "within error", math.expm1(max(ends))
    logs = model.log_speedup(law, estimated.value, model.grid, log_base)
    parameters = {name: estimated.interval(index) for index, name in enumerate(_PARAMETERS[law])}
    if law == "usl" and model.beta_held:
        parameters["beta"] = Interval(value=0.0)
    return Fit(
        law=law,
        parameters=parameters,
        residuals={size: _expm1(off.interval(index)) for index, size in enumerate(sizes)},
        goodness=goodness,
        r_squared=1 - float(((speedup - predicted) ** 2).sum()) / spread if spread > 0 else None,
        unseen=unseen,
        line=tuple(
            (float(n), math.exp(log)) for n, log in zip(model.grid, logs, strict=True) if math.isfinite(log)
        ),
        remarks=tuple(_remarks(law, parameters, beta_held=model.beta_held)),
    )


def _expm1(log: Interval) -> Interval:
    return Interval(
        value=math.expm1(log.value),
        low=None if log.low is None else math.expm1(log.low),
        high=None if log.high is None else math.expm1(log.high),
    )


def _excludes_zero(interval: Interval) -> bool:
    if interval.low is None or interval.high is None or abs(interval.value) < _EXACT:
        return False
    return not interval.low <= 0 <= interval.high


def _positive(interval: Interval) -> bool:
    return _excludes_zero(interval) and interval.value > 0


def _remarks(law: Law, parameters: Mapping[str, Interval], *, beta_held: bool) -> list[str]:
    """Return what parameters outside their usual range mean."""
    words: list[str] = []
    if law != "usl":
        s = parameters["s"]
        if s.high is not None and s.high < 0:
            words.append("The serial fraction is negative: speed-up is superlinear, as when data fit caches.")
        elif not _excludes_zero(s):
            words.append("The serial fraction's interval includes 0.")
        return words
    alpha, beta = parameters["alpha"], parameters["beta"]
    if alpha.high is not None and alpha.high < 0:
        words.append("Contention is negative: speed-up is superlinear somewhere.")
    elif not _excludes_zero(alpha):
        words.append("The interval of contention includes 0.")
    if beta_held:
        words.append("Coherency would come out negative and is held at 0: no peak shows in these points.")
    elif not _excludes_zero(beta):
        words.append("The interval of coherency includes 0: whether throughput peaks at all cannot be told.")
    return words


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


def _too_few(curve: Curve) -> str:
    honest = [1, *curve.paired]
    short = [size for size in curve.sizes if size > 1 and size not in curve.paired]
    few = f" ({_listed(sorted(short))} with under {MIN_ROUNDS} rounds)" if short else ""
    ranks = "rank" if honest == [1] else "ranks"
    return (
        f"too few points: {_listed(honest)} {ranks} measured{few}, and a law needs {MIN_POINTS} world sizes"
    )


def _percent(fraction: float) -> str:
    return f"{100 * abs(fraction):.1f} %" if abs(fraction) >= 0.0005 else "under 0.1 %"


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _trend(scaling: str, sizes: Sequence[int], rise: Interval) -> str:
    """Return what the serial fraction does from the first measured world size to the last."""
    name = "Karp-Flatt's serial fraction" if scaling == "strong" else "The serial fraction"
    where = f"from {sizes[0]} to {sizes[-1]} ranks"
    if not _excludes_zero(rise):
        return f"{name} does not measurably change {where}."
    if rise.value > 0:
        return f"{name} rises {where}: it is overhead that grows with ranks, not work that cannot be divided."
    return f"{name} falls {where}: part of the loss comes with the second rank and grows no further."


def _knee(points: Sequence[LawPoint]) -> tuple[int | None, str]:
    """Return the last world size before an added rank brings less than `KNEE_CUT` of a rank, and a sentence on it."""
    largest = points[-1].world_size
    words: list[str] = []
    knee: int | None = None
    for before, point in zip([1, *(p.world_size for p in points)], points, strict=False):
        marginal = point.marginal
        if marginal.value >= KNEE_CUT:
            continue
        knee = before
        sure = (
            ""
            if marginal.high is None or marginal.high < KNEE_CUT
            else ", though its interval reaches the cut"
        )
        words.append(
            f"The knee is at {before} rank{'s' if before != 1 else ''}: from there to {point.world_size} an added "
            f"rank brings {_signed(marginal.value)} of a rank, less than {KNEE_CUT:g}{sure}."
        )
        break
    else:
        words.append(
            f"No knee up to {largest} ranks: every added rank brings {KNEE_CUT:g} of a rank or more "
            f"({points[-1].marginal.value:.2f} in the last stretch)."
        )
    return knee, " ".join(words)


def _peak(usl: Fit | None, peak: Interval, largest: int) -> str:
    """Return a sentence on the USL's peak; empty where it cannot be told that there is one."""
    if usl is None or not _positive(usl.parameters["beta"]) or not math.isfinite(peak.value):
        return ""
    if peak.value > EXTRAPOLATION * largest:
        return (
            f"By the USL throughput peaks beyond {EXTRAPOLATION * largest} ranks, too far out to say where."
        )
    ends = "" if peak.low is None or peak.high is None else f" [{peak.low:.1f}, {peak.high:.1f}]"
    label = ", an extrapolation" if peak.value > largest else ""
    doubt = "" if usl.goodness != "beyond error" else "; but it does not fit these points"
    return f"By the USL throughput peaks at {peak.value:.1f}{ends} ranks{label}{doubt}."


def _candidates(sizes: Sequence[int], *, devices: int | None, batch: int | None) -> list[int]:
    """World sizes not measured that might be: powers of two, and one between each two that are apart.

    None is beyond `EXTRAPOLATION` times the largest measured; under strong scaling each divides the batch.
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


def _next_without_fit(sizes: Sequence[int], devices: int | None, batch: int | None) -> NextSize | None:
    """Return what would make a law's third point: the next power of two where devices allow, or a size between."""
    measured = [*sizes] or [1]
    here = _candidates(measured, devices=devices, batch=batch)
    beyond = _candidates(measured, devices=None, batch=batch)
    found = here or beyond
    if not found:
        return None
    reason = "it is the next power of two, and a law needs one more point"
    if found[-1].bit_count() != 1:
        reason = "it lies between those measured, and a law needs one more point"
    return NextSize(world_size=found[-1], reason=reason, here=bool(here))


def _next(
    model: _Model, fits: Sequence[Fit], found: Mapping[str, _Estimated], devices: int | None
) -> NextSize | None:
    """Return where the laws disagree most, or where the USL knows least about itself, relative to its value."""
    usable = [n for n in model.candidates if devices is None or n <= devices] or model.candidates
    largest = int(model.sizes[-1])
    # what is known not to hold is asked only where nothing is known to hold
    fits = [fit for fit in fits if fit.goodness != "beyond error"] or fits
    best: tuple[float, int, str] | None = None
    for n in usable:
        index = model.candidates.index(n)
        label = ", extrapolated" if n > largest else ""
        said = {fit.law: found[f"{fit.law} ahead"].interval(index) for fit in fits}
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
