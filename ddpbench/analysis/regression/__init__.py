"""Compare runs: whether training became slower, in which cases, by how much, and in which part of a step."""

from ddpbench.analysis.regression.changes import Change, Changes, ChangeVerdict, PartChange, changes_of
from ddpbench.analysis.regression.sides import Side, read_side, unlike

__all__ = [
    "Change",
    "ChangeVerdict",
    "Changes",
    "PartChange",
    "Side",
    "changes_of",
    "read_side",
    "unlike",
]
