"""Runs of the same cases in the order in which they were measured: since when is one slower, and by how much."""

from ddpbench.features.history.analysis.reading import read_sides
from ddpbench.features.history.analysis.series import (
    CaseHistory,
    ChangePoint,
    History,
    Level,
    Point,
    history_of,
)

__all__ = [
    "CaseHistory",
    "ChangePoint",
    "History",
    "Level",
    "Point",
    "history_of",
    "read_sides",
]
