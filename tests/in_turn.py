"""The verdict of an interleaved comparison about a single case."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.regression.changes import MARGIN, _outcome_in_turn, wider_in_turn
from ddpbench.analysis.statistics.stats import ALPHA


def verdict_in_turn(logs: Sequence[float]) -> str:
    """Return the verdict on the logarithms of new over base time per sample, one per round."""
    return _outcome_in_turn(logs, MARGIN, ALPHA, wider_in_turn([dict(enumerate(logs))])).verdict
