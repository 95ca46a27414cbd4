"""Compare runs of the same cases in the order of their measurement, to find since when a case is slower."""

from ddpbench.features.history.analysis.reading import read_sides
from ddpbench.features.history.analysis.series import (
    CaseHistory,
    ChangePoint,
    History,
    SeriesLevel,
    SeriesPoint,
    history_of,
)

__all__ = [
    "CaseHistory",
    "ChangePoint",
    "History",
    "SeriesLevel",
    "SeriesPoint",
    "history_of",
    "read_sides",
]
