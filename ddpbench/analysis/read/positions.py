"""Balance of the order of cases over rounds, which limits the effect of a drift within rounds on ratios."""

from __future__ import annotations

from collections.abc import Sequence


def position_spread(order: Sequence[tuple[int, str]], rounds: int) -> float | None:
    """Return the largest difference of two cases' mean positions within a round, as a share of the round.

    `order` has (round, case id) in run order; only the first `rounds` rounds count. A machine that drifts evenly by d
    per round changes the ratio of two cases by at most d times the result. None for a single case, or if rounds differ
    in cases.
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
