"""A scaling law fitted to a curve, with its parameters and its goodness of fit, and texts that describe both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ddpbench.analysis.scaling.jackknife import Estimated
from ddpbench.analysis.scaling.model import EXACT, Law, Model
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.units import counted, format_at_most

Goodness = Literal["within error", "beyond error", "undetermined"]
_PARAMETERS: Mapping[Law, tuple[str, ...]] = {
    "amdahl": ("s",),
    "gustafson": ("s",),
    "usl": ("alpha", "beta", "gamma"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A scaling law fitted to a curve.

    `parameters` are `s`, a fraction, or `alpha`, `beta`, and `gamma` in samples/s. `residuals` are the law's speed-up
    divided by the measured one, minus 1, by world size. `line` has points (world size, speed-up) up to `EXTRAPOLATION`
    times the largest measured world size.

    `goodness` tests whether any residual's interval excludes 0 (corrected by Bonferroni). It is undetermined without a
    point to test. `unseen` is the largest misfit, a fraction, that the intervals allow.
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
        """Return the world size with the largest residual, and this residual."""
        size = max(self.residuals, key=lambda n: abs(self.residuals[n].value))
        return size, self.residuals[size].value

    @property
    def coherency_held(self) -> bool:
        """Return whether `beta` was fixed at 0 instead of fitted."""
        beta = self.parameters.get("beta")
        return beta is not None and beta.low is None and beta.value == 0

    @property
    def impossible(self) -> bool:
        """Return whether the fitted serial fraction or contention is below 0 or above 1, with its whole interval.

        Such a law's efficiency rises above 1 or falls below 0, so it forecasts nothing.
        """
        found = [self.parameters[name] for name in _FRACTIONS if name in self.parameters]
        ends = [
            (one.value, one.value) if one.low is None or one.high is None else (one.low, one.high)
            for one in found
        ]
        return any(high < -EXACT or low > 1 + EXACT for low, high in ends)

    @property
    def rejected(self) -> bool:
        """Return whether the law does not fit or is impossible; its curve must then not be shown."""
        return self.goodness == "beyond error" or self.impossible

    @property
    def judged(self) -> str:
        """Say whether the law fits, in words."""
        return "does not apply" if self._applies_nowhere else _JUDGED[self.goodness]

    @property
    def _applies_nowhere(self) -> bool:
        return self.impossible and self.goodness == "within error"

    @property
    def detail(self) -> str:
        """Say on which numbers the goodness of fit is based."""
        if self._applies_nowhere:
            return "its serial fraction or contention would be below 0 or above 1"
        size, residual = self.worst
        off = f"off by {_percent(residual)} at most, at {counted(size, 'rank')}"
        if self.goodness == "within error":
            hidden = (
                ""
                if self.unseen is None
                else f"; a misfit of up to {format_at_most(self.unseen)} would go unseen"
            )
            return f"{off}{hidden}"
        if self.goodness == "beyond error":
            return f"{off}, more than the measurement's error"
        if any(one.low is None for one in self.residuals.values()):
            return "without one of the rounds it has no speed-up at some world size"
        return "as many parameters as points: nothing is left to judge it by"

    @property
    def verdict(self) -> str:
        """Say whether the law fits, and on which numbers this is based."""
        return f"{self.judged} ({self.detail})"


_FRACTIONS = ("s", "alpha")
"""Parameters that are fractions of the work: Amdahl's and Gustafson's serial fraction, and contention."""
_JUDGED: dict[Goodness, str] = {
    "within error": "fits within the measurement's error",
    "beyond error": "does not fit",
    "undetermined": "cannot be judged",
}


def fit_of(model: Model, law: Law, estimates: Mapping[str, Estimated]) -> Fit | None:
    """Return the fit of a law with its intervals; None if the data do not determine a fit.

    `estimates` are the results of `jackknife` for `model.everything`.
    """
    estimated, off = estimates[law], estimates[f"{law} residual"]
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
        if any(excludes_zero(one) for one in asked):
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


def excludes_zero(interval: Interval) -> bool:
    """Return whether an interval excludes 0 by more than rounding."""
    if interval.low is None or interval.high is None or abs(interval.value) < EXACT:
        return False
    return not interval.low <= 0 <= interval.high


def _remarks(law: Law, parameters: Mapping[str, Interval], *, beta_held: bool) -> list[str]:
    words: list[str] = []
    if law != "usl":
        s = parameters["s"]
        if s.high is not None and s.high < 0:
            words.append("The serial fraction is negative: speed-up is superlinear, as when data fit caches.")
        elif not excludes_zero(s):
            words.append("The serial fraction's interval includes 0.")
        elif s.low is not None and s.low > 1:
            words.append("The serial fraction is above 1: several ranks train fewer samples/s than one.")
        return words
    alpha, beta = parameters["alpha"], parameters["beta"]
    if alpha.high is not None and alpha.high < 0:
        words.append("Contention is negative: speed-up is superlinear somewhere.")
    elif not excludes_zero(alpha):
        words.append("The interval of contention includes 0.")
    elif alpha.low is not None and alpha.low > 1:
        words.append("Contention is above 1: already two ranks train less than one.")
    if beta_held:
        words.append(
            "Coherency would come out negative and is held at 0: the law then has no peak beyond one rank."
        )
    elif not excludes_zero(beta):
        words.append("The interval of coherency includes 0: whether throughput peaks at all cannot be told.")
    return words


def _percent(fraction: float) -> str:
    return f"{100 * abs(fraction):.1f} %" if abs(fraction) >= 0.0005 else "under 0.1 %"
