"""Scaling laws as weighted linear least squares over a curve: Amdahl, Gustafson, Karp-Flatt, USL.

- Amdahl, AFIPS 1967, strong scaling only (a fixed amount of work): S(n) = 1 / (s + (1-s)/n).
- Gustafson, CACM 31 (1988), weak scaling only (work grows with n): S(n) = n - s(n-1).
- Karp & Flatt, CACM 33 (1990), strong scaling: e(n) = (1/S - 1/n) / (1 - 1/n) at each point. Under weak scaling this
  number falls with n even if ranks lose ever more, so Gustafson's own fraction, (n-S)/(n-1), replaces it there.
- Gunther, "Guerrilla Capacity Planning" (2007), the Universal Scalability Law, for either scaling:
  X(n) = gamma n / (1 + alpha(n-1) + beta n(n-1)), largest at n* = sqrt((1-alpha)/beta).

Gustafson's law is linear in its parameter. The reciprocal of Amdahl's law is, too. For the USL, n / X(n) is linear in
1/gamma and in the other parameters times 1/gamma. So the fits are weighted linear least squares, which need no starting
values and have no local minima. Weights are from the relative errors of the speed-ups. To first order, reciprocals have
the same relative errors. Each point's weight is mixed with the mean of all, because an error estimated from five rounds
is itself uncertain. Parameters may leave their usual range (superlinear speed-up gives a negative alpha), and the
wording says so. But a beta that would be negative is fixed at 0, because otherwise the USL would forecast that
efficiency recovers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ddpbench.analysis.scaling.speedups import Array, SpeedupCurve, standard_error
from ddpbench.analysis.statistics.timings import TimingKey

EXTRAPOLATION = 2
"""Largest world size of a forecast, as a multiple of the largest measured world size."""
_LINE_POINTS = 49
_PRIOR_ROUNDS = 30
"""Weight, in rounds, of the mean error of all points in each point's error."""
EXACT = 1e-9
"""Residuals and parameters smaller than this count as 0, because they may be due to rounding."""

Law = Literal["amdahl", "gustafson", "usl"]
LAW_NAMES: Mapping[Law, str] = {
    "amdahl": "Amdahl's law",
    "gustafson": "Gustafson's law",
    "usl": "the Universal Scalability Law",
}


class Model:
    """The scaling laws of one curve, fitted to all rounds or, with the same weights, to all but one."""

    def __init__(self, curve: SpeedupCurve, candidates: Sequence[int]) -> None:
        self.curve = curve
        self.candidates = list(candidates)
        self.sizes = np.array(list(curve.paired), np.float64)
        self.all_sizes = np.concatenate([[1.0], self.sizes])
        self.laws: tuple[Law, ...] = ("amdahl" if curve.scaling == "strong" else "gustafson", "usl")
        self.limit = EXTRAPOLATION * float(self.sizes[-1])
        self.grid = np.unique(np.concatenate([np.geomspace(1, self.limit, _LINE_POINTS), self.all_sizes]))
        errors = np.array([standard_error(curve, size) for size in curve.paired])
        # Weights from few rounds fit chance, so intervals are too narrow (88 % instead of 95 % at five rounds).
        trust = np.array([len(both) - 1 for both in curve.paired.values()], np.float64)
        mixed = np.sqrt((trust * errors**2 + _PRIOR_ROUNDS * np.mean(errors**2)) / (trust + _PRIOR_ROUNDS))
        self.sigma = np.maximum(mixed, 1e-3 if not mixed.any() else 1e-3 * float(mixed.max()))
        # The base case's error is in every speed-up; as a point of the USL it has the median weight.
        self.sigma_all = np.concatenate([[float(np.median(self.sigma))], self.sigma])
        self.beta_held = False
        logs, log_base = curve.log_speedups(), curve.log_base_rate()
        self.beta_held = bool(self.parameters("usl", logs, log_base)[1] < -EXACT)

    def parameters(self, law: Law, logs: Array, log_base: float) -> Array:
        """Return a law's parameters fitted to log speed-ups: `[s]`, or `[alpha, beta, gamma]` (gamma in samples/s)."""
        n, speedup = self.sizes, np.exp(logs)
        if law == "amdahl":
            x, y, weight = 1 - 1 / n, 1 / speedup - 1 / n, speedup / self.sigma
        elif law == "gustafson":
            x, y, weight = n - 1, n - speedup, 1 / (speedup * self.sigma)
        else:
            return self._usl(np.concatenate([[1.0], speedup]), log_base)
        return np.array([float(np.sum(weight**2 * x * y) / np.sum(weight**2 * x * x))])

    def _usl(self, speedup: Array, log_base: float) -> Array:
        n = self.all_sizes
        y = n / speedup
        weight = 1 / (y * self.sigma_all)
        columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1)[:, : 2 if self.beta_held else 3]
        one, *others = np.linalg.lstsq(columns * weight[:, None], y * weight, rcond=None)[0]
        if one <= 0:
            return np.full(3, np.nan)
        alpha, beta = (*(other / one for other in others), 0.0)[:2]
        return np.array([alpha, beta, math.exp(log_base) / one])

    def log_speedup(self, law: Law, parameters: Array, n: Array, log_base: float) -> Array:
        """Return the logarithm of the law's speed-up at world sizes `n`.

        It is NaN where the speed-up is not positive.
        """
        if law == "amdahl":
            value = parameters[0] + (1 - parameters[0]) / n
            return -_log(value)
        if law == "gustafson":
            return _log(n - parameters[0] * (n - 1))
        alpha, beta, gamma = parameters
        return _log(n * gamma) - _log(1 + alpha * (n - 1) + beta * n * (n - 1)) - log_base

    def everything(self, without: TimingKey | None) -> dict[str, Array]:
        """Compute all quantities that need an interval, by name, from all rounds except `without`."""
        logs = self.curve.log_speedups(without)
        log_base = self.curve.log_base_rate(without)
        n, speedup = self.sizes, np.exp(logs)
        strong = self.curve.scaling == "strong"
        fraction = (1 / speedup - 1 / n) / (1 - 1 / n) if strong else (n - speedup) / (n - 1)
        found: dict[str, Array] = {
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


def _log(values: Array) -> Array:
    return np.log(values, out=np.full_like(values, np.nan), where=values > 0)
