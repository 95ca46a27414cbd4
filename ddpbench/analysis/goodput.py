"""Share of time that a job spends on training if it fails at random, as a function of the period of its snapshots.

C is the cost of a snapshot, R the time from a failure until training continues, M the mean time between failures, and
tau the training between two snapshots, in one unit. C and R are means over launches, because lost times add up.

Failures are a Poisson process, also during snapshots and recoveries, and lose all training since the last snapshot. A
segment of training and its snapshot take on average M exp(R/M) (exp((tau + C)/M) - 1) (Daly 2006, "A higher order
estimate of the optimum checkpoint interval for restart dumps", eq. 13 for one segment).
"""

from __future__ import annotations

import math

from scipy import special

from ddpbench.units import format_seconds, format_two_digits


def ettr(period: float, snapshot: float, recovery: float, mtbf: float) -> float:
    """Return the effective training time ratio, which is the time of training that is not lost divided by wall time.

    `period` is the training between two snapshots, and all arguments have the same unit of time. The result is 0 if it
    is almost impossible to complete the training and its snapshot between two failures.

    Raises:
        ValueError: a time is not positive (only `recovery` may be 0).
    """
    _check(snapshot, recovery, mtbf)
    if not period > 0:
        raise ValueError(f"the period must be positive, not {period:g}")
    exponent = (period + snapshot) / mtbf
    if exponent + recovery / mtbf > 700:  # exp overflows: less than one in 10^300
        return 0.0
    return period / (mtbf * math.exp(recovery / mtbf) * math.expm1(exponent))


def young(snapshot: float, mtbf: float) -> float:
    """Return Young's period between snapshots, sqrt(2 C M), where C is `snapshot` and M is `mtbf` (CACM 17, 1974).

    The formula assumes that C is short compared with M.
    """
    _check(snapshot, 0.0, mtbf)
    return math.sqrt(2 * snapshot * mtbf)


def daly(snapshot: float, mtbf: float) -> float:
    """Return Daly's period between snapshots (2006, eq. 37), which is `mtbf` if a snapshot takes 2 `mtbf` or longer."""
    _check(snapshot, 0.0, mtbf)
    if snapshot >= 2 * mtbf:
        return mtbf
    root = math.sqrt(snapshot / (2 * mtbf))
    return math.sqrt(2 * snapshot * mtbf) * (1 + root / 3 + snapshot / (18 * mtbf)) - snapshot


def best(snapshot: float, mtbf: float) -> float:
    """Return the period between snapshots that maximizes `ettr`.

    The period is exactly M (1 + W(-exp(-1 - C/M))), where C is `snapshot`, M is `mtbf` and W is Lambert's function.
    The recovery time does not matter, because it is lost once per failure at any period.
    """
    _check(snapshot, 0.0, mtbf)
    return mtbf * (1 + float(special.lambertw(-math.exp(-1 - snapshot / mtbf)).real))


def words(snapshot_s: float, recovery_s: float, mtbf_s: float) -> tuple[str, str]:
    """State the best period between snapshots, and the share of time that is then lost, as texts: `57 s`, `0.069 %`."""
    period_s = best(snapshot_s, mtbf_s)
    lost = 1 - ettr(period_s, snapshot_s, recovery_s, mtbf_s)
    return format_seconds(float(f"{period_s:.2g}")), f"{format_two_digits(100 * lost)} %"


def _check(snapshot: float, recovery: float, mtbf: float) -> None:
    for name, value in (("the snapshot time", snapshot), ("the mean time between failures", mtbf)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive, not {value:g}")
    if not (recovery >= 0 and math.isfinite(recovery)):
        raise ValueError(f"the recovery time must not be negative, but is {recovery:g}")
