"""Runs of the same cases in the order in which they were measured: since when is one slower, and by how much."""

from ddpbench.analysis.history.reading import read_sides
from ddpbench.analysis.history.series import (
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
