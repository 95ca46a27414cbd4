"""Evenness of the order of cases within rounds: the effect of a drift within rounds on their ratios."""

from __future__ import annotations

from collections.abc import Sequence


def position_spread(order: Sequence[tuple[int, str]], rounds: int) -> float | None:
    """Return the largest difference of two cases' mean positions in the first rounds, as a share of a round.

    `order` holds (round, case id) in run order. A drift of d from the first launch of each round to the last one, even
    within it, is in a ratio of two cases with this factor at most. None under two cases, and where rounds differ in
    their cases, as in merged runs.
    """
    in_round: dict[int, list[str]] = {}
    for number, case_id in order:
        if number < rounds:
            in_round.setdefault(number, []).append(case_id)
    if not in_round or len({frozenset(ids) for ids in in_round.values()}) > 1:
        return None
    sums: dict[str, int] = {}
    for ids in in_round.values():
        for position, case_id in enumerate(ids):
            sums[case_id] = sums.get(case_id, 0) + position
    if len(sums) < 2:
        return None
    return (max(sums.values()) - min(sums.values())) / len(in_round) / (len(sums) - 1)
