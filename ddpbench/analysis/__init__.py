"""Analyse a run's records: statistics, step times, findings; nothing is drawn here."""

from ddpbench.analysis.aa_test import NoiseResult, noise_of
from ddpbench.analysis.decided import load
from ddpbench.analysis.finding import Finding
from ddpbench.analysis.invariants.checked import Bounded, Checked, Violation
from ddpbench.analysis.overview.build import summarize
from ddpbench.analysis.rounds import SoFar, cases_without_target, so_far
from ddpbench.analysis.summary import CaseFailure, Counts, RunSummary
from ddpbench.analysis.table.columns import COLUMNS, DTYPES
from ddpbench.analysis.table.frame import read_csv, write_csv

__all__ = [
    "COLUMNS",
    "DTYPES",
    "Bounded",
    "CaseFailure",
    "Checked",
    "Counts",
    "Finding",
    "NoiseResult",
    "RunSummary",
    "SoFar",
    "Violation",
    "cases_without_target",
    "load",
    "noise_of",
    "read_csv",
    "so_far",
    "summarize",
    "write_csv",
]
