"""Choose the order in which each round launches the cases: random, and balanced over rounds.

Drift that is linear within each round cancels in the mean of every log ratio if each case's positions have the same sum
over the rounds. Two methods make the sums equal:

- a random order and its reverse, in which every case has the position sum k - 1;
- three orders with equal position sums, for an odd number of rounds. They exist if the number of cases k is odd; for
  even k the sums differ by 1, which is the least possible. A random search finds the orders; for many cases, they are
  constructed instead.

So the orders are balanced after `rounds_min` rounds, and after every second round from then on. The effect of the case
that ran just before is left to chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ddpbench.spec import Budget, PlannedCase

MOST_SEARCHED = 40
"""Maximum number of cases for which orders are searched. A search for more would take over a second, so their orders
are constructed.
"""
_STEPS = 10_000
"""Number of exchanges after which the search ends without a result."""

Positions = list[int]
"""Position of each case in a round, from 0, by the case's index."""


def run_order(cases: Iterable[PlannedCase], budget: Budget) -> list[tuple[int, str]]:
    """Return the (round, case id) of every launch in `rounds_max` rounds, in launch order, without skipped cases."""
    assert budget.seed is not None
    ids = [entry.case.case_id for entry in cases if entry.skip_reason is None]
    orders = balanced_orders(ids, rounds_min=budget.rounds_min, rounds=budget.rounds_max, seed=budget.seed)
    return [(number, case_id) for number, round_ids in enumerate(orders) for case_id in round_ids]


def balanced_orders(case_ids: Sequence[str], *, rounds_min: int, rounds: int, seed: int) -> list[list[str]]:
    """Return, for each of `rounds` rounds, the case ids in launch order; the result depends only on the arguments."""
    rng = random.Random(f"{seed}")
    shuffled = rng.sample(case_ids, len(case_ids))
    return [
        _in_order(shuffled, positions)
        for positions in islice(_rounds(len(shuffled), rounds_min, rng), rounds)
    ]


def _in_order(case_ids: Sequence[str], positions: Positions) -> list[str]:
    return [case_id for _, case_id in sorted(zip(positions, case_ids, strict=True))]


def _rounds(cases: int, rounds_min: int, rng: random.Random) -> Iterator[Positions]:
    """Yield pairs of an order and its reverse; for an odd `rounds_min` above 1, three balanced orders first."""
    if rounds_min >= 3 and rounds_min % 2:
        three = list(_search(cases, rng) or construct_three(cases))
        rng.shuffle(three)
        yield from three
    while True:
        order = rng.sample(range(cases), cases)
        yield order
        yield [cases - 1 - position for position in order]


def construct_three(cases: int) -> tuple[Positions, Positions, Positions]:
    """Return three orders of k cases with equal position sums, 3(k-1)/2; if k is even, sums differ from that by 1/2.

    In these orders most cases follow the same case twice, so those of `_search` are better.
    """
    first = list(range(cases))
    half = (cases + 1) // 2
    second = [2 * (half - 1 - i) if i < half else 2 * (cases - i) - 1 for i in first]
    wanted = [3 * (cases - 1) // 2 + (1 if cases % 2 == 0 and i >= half else 0) for i in first]
    third = [total - a - b for total, a, b in zip(wanted, first, second, strict=True)]
    return first, second, third


def _search(cases: int, rng: random.Random) -> tuple[Positions, Positions, Positions] | None:
    """Return three balanced orders found by random exchanges; None if there are too many cases or none is found."""
    if cases > MOST_SEARCHED:
        return None
    first = list(range(cases))
    second = rng.sample(first, cases)
    third, off = _third(first, second)
    for _ in range(_STEPS):
        wrong = [i for i in first if off[i]]
        if not wrong:
            return first, second, third
        i, j = rng.choice(wrong), rng.randrange(cases)
        second[i], second[j] = second[j], second[i]
        tried, excess = _third(first, second)
        if sum(excess) <= sum(off) or rng.random() < 0.01:  # sometimes a worse one, to leave a dead end
            third, off = tried, excess
        else:
            second[i], second[j] = second[j], second[i]
    return None


def _third(first: Positions, second: Positions) -> tuple[Positions, list[int]]:
    """Return the order that best balances two others, and each case's imbalance.

    The imbalance is 0 if the position sum is within 1/2 of the mean, otherwise twice the excess.
    """
    sums = [a + b for a, b in zip(first, second, strict=True)]
    third = [0] * len(sums)
    for position, i in enumerate(sorted(first, key=lambda i: -sums[i])):
        third[i] = position
    mean = 3 * (len(sums) - 1)
    return third, [max(0, abs(2 * (total + own) - mean) - 1) for total, own in zip(sums, third, strict=True)]
