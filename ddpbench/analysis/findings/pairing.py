"""A sentence on launches that cannot be compared within a round, because different sessions ran them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpbench.analysis.names import Names
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.timings import TimingKey


def pairing_sentences(cases: Sequence[CaseRun], names: Names) -> Iterable[str]:
    """Yield a sentence on launches that ran in a different session than most launches of their round."""
    parts: dict[int, dict[TimingKey, int]] = {}
    for case in cases:
        for timing in case.timings:
            part = parts.setdefault(timing.round, {})
            part[timing.pair] = part.get(timing.pair, 0) + 1
    split = {number: part for number, part in parts.items() if len(part) > 1}
    if not split:
        return
    kept = {max(part, key=lambda pair: (part[pair], pair)) for part in split.values()}
    separate = [
        case for case in cases for timing in case.timings if timing.round in split and timing.pair not in kept
    ]
    rounds = f"{len(split)} round{'s were' if len(split) != 1 else ' was'}"
    launches = f"{len(separate)} launch{'es were' if len(separate) != 1 else ' was'}"
    whose, own = "their", "They count for their own cases"
    if len(separate) == 1:
        whose, own = "its", "It counts for its own case"
    affected = list({case.case_id: case for case in separate}.values())
    yield (
        f"{launches} not run together with the rest of {whose} round: {rounds} completed by another session of the "
        f"sweep, after an interruption or with --retry-failed. {own}, and in comparisons only with launches of the "
        f"same session and round{names.listed(affected)}."
    )
