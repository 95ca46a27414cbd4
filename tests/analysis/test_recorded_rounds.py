"""False alarms on real rounds: sessions of equal sides that were recorded on a machine shared with others.

`recorded/equal_sides_us.json` has interleaved comparisons of a program with itself, of four cases each. Its rounds are
split into two sides at random, many times, and each split is judged as the tool would, to count how often a case is
called different.

Interpretation of such a share: splits of the same rounds overlap, so their verdicts are not independent samples of this
machine. Given the rounds, however, each split is drawn independently, and the share of false alarms estimates one
number: that among all splits of these rounds. Its binomial interval concerns that number.

In turn, the two sides of a round differ only by chance: each of the 2^n ways to swap them is as likely as the recorded
one. The share is then the error rate for rounds that scatter as these do, with their outliers, their
changing variance and the correlation between cases. For two runs, sessions are dealt to the sides, which are equal as
long as no session is special.

The interval does not include that other rounds, days or machines scatter in another way: simulations cover those
(`test_sequential.py`, `test_changes.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ddpbench.analysis.regression.apart import across
from ddpbench.analysis.statistics.resolution import DRIFT
from ddpbench.analysis.statistics.sequential import evidence
from ddpbench.analysis.statistics.stats import ALPHA, FEWEST, MIN_ROUNDS, t_quantile
from ddpbench.analysis.statistics.timings import Timing

RECORDED = Path(__file__).parent / "recorded" / "equal_sides_us.json"
SPLITS = 2000
SEQUENTIAL_SPLITS = 500
RUN_SPLITS = 400


@cache
def sessions() -> list[NDArray[np.float64]]:
    """Return logarithms of step times of each session: case, round, side."""
    data = json.loads(RECORDED.read_text(encoding="ascii"))
    return [np.log(np.array(list(one["steps_us"].values()), dtype=float)) for one in data["sessions"]]


def ratios() -> NDArray[np.float64]:
    """Return logarithms of new over base of all rounds in the order in which they ran: case, round."""
    return np.concatenate([one[:, :, 1] - one[:, :, 0] for one in sessions()], axis=1)


@dataclass(frozen=True)
class Share:
    """Number of splits, and of those in which a case was called different."""

    wrong: int
    splits: int

    @property
    def low(self) -> float:
        """Return the lower end of the share's 95 % binomial interval (Wilson)."""
        n, share, z = self.splits, self.wrong / self.splits, 1.96
        middle = share + z**2 / (2 * n)
        spread = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
        return (middle - spread) / (1 + z**2 / n)


def of_splits(*, seed: int = 1) -> NDArray[np.float64]:
    """Return log ratios of all rounds: split, case, round. In a split each round's sides are swapped or not, for all
    cases.
    """
    logs = ratios()
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (SPLITS, 1, logs.shape[1]))
    return signs * logs


def sequential(drawn: NDArray[np.float64]) -> Share:
    """Return false alarms of families in turn, checked after every round. All cases together have the error ALPHA."""
    level = math.log(drawn.shape[1] / ALPHA)
    wrong = (evidence(drawn) >= level).any(axis=(1, 2)).sum()
    return Share(int(wrong), len(drawn))


def students(drawn: NDArray[np.float64], *, looks: bool) -> Share:
    """Return false alarms with Student's interval, checked after every round, or without `looks` once, at the end."""
    n = np.arange(1, drawn.shape[2] + 1)
    mean = drawn.cumsum(axis=2) / n
    squares = np.maximum((drawn**2).cumsum(axis=2) - n * mean**2, 0)[:, :, FEWEST - 1 :]
    n, mean = n[FEWEST - 1 :], mean[:, :, FEWEST - 1 :]
    halves = np.array([t_quantile(1 - ALPHA / drawn.shape[1] / 2, k - 1) / math.sqrt(k) for k in n])
    outside = np.abs(mean) > halves * np.sqrt(squares / (n - 1))
    wrong = outside.any(axis=(1, 2)) if looks else outside[:, :, -1].any(axis=1)
    return Share(int(wrong.sum()), len(drawn))


def test_enough_real_rounds_are_recorded() -> None:
    data = json.loads(RECORDED.read_text(encoding="ascii"))
    assert ratios().shape[0] == 4
    assert ratios().shape[1] >= 64
    assert {"how", "machine", "sessions"} <= set(data)
    for one in data["sessions"]:
        assert {len(one["first"])} == {len(rounds) for rounds in one["steps_us"].values()}


def test_equal_sides_in_turn_are_told_apart_in_at_most_one_split_of_twenty() -> None:
    """Checked after every round, over all rounds: the family-wise rate that a comparison promises."""
    assert sequential(of_splits()[:SEQUENTIAL_SPLITS]).low <= ALPHA
    assert students(of_splits(), looks=False).low <= ALPHA  # and once, with Student's interval


def test_students_interval_looked_at_after_every_round_is_wrong_far_too_often() -> None:
    """These are the same rounds and splits, with the interval that a sequential comparison must not use."""
    assert students(of_splits(), looks=True).low > 3 * ALPHA


def test_the_sessions_as_they_were_recorded_raise_few_alarms() -> None:
    """Without splits: each is a comparison that was made, and they are as independent as the sessions."""
    differences = [one[:, :, 1] - one[:, :, 0] for one in sessions()]
    wrong = sum((evidence(logs) >= math.log(len(logs) / ALPHA)).any() for logs in differences)
    assert Share(int(wrong), len(sessions())).low <= ALPHA


def launches(chosen: Sequence[int], sides: Sequence[int], case: int) -> list[Timing]:
    """Return the launches of one of the two sides of each of these sessions, as a side would have measured them."""
    return [
        Timing(round=number, time_s=math.exp(log), steps=1, samples=1, session=str(session))
        for session, side in zip(chosen, sides, strict=True)
        for number, log in enumerate(sessions()[session][case, :, side])
    ]


def dealt(size: int, drift: float | None, *, seed: int = 2) -> Share:
    """Return false alarms of families of two runs, each of `size` separate sessions, corrected for their number."""
    dice = np.random.default_rng(seed)
    wrong = splits = 0
    while splits < RUN_SPLITS:
        order = dice.permutation(len(sessions()))[: 2 * size]
        parts = order[:size], order[size:]
        if min(sum(sessions()[one].shape[1] for one in part) for part in parts) < MIN_ROUNDS:
            continue  # too few rounds for a verdict
        chosen = [dice.integers(0, 2, size) for _ in parts]
        p_values = []
        for case in range(len(ratios())):
            a, b = (launches(part, sides, case) for part, sides in zip(parts, chosen, strict=True))
            p_value = across(a, b, drift).p_value
            assert p_value is not None
            p_values.append(p_value)
        splits += 1
        wrong += min(p_values) <= ALPHA / len(p_values)
    return Share(wrong, splits)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_two_runs_of_equal_programs_are_told_apart_in_at_most_one_split_of_twenty(size: int) -> None:
    """Although this machine's load changed from session to session, and step times with it, up to fourfold.

    Halves of these sessions, split in the same way, have between 1 and 11 %: the factor over a quiet machine's drift
    (`drift_of`) was chosen on all of them.
    """
    assert dealt(size, None).low <= ALPHA


def test_the_drift_of_a_quiet_machine_does_not_cover_that_of_a_shared_one() -> None:
    """This is why launches' own scatter counts, where it is larger."""
    assert dealt(1, DRIFT).low > 3 * ALPHA
