"""Export of a run's numbers for other programs: steps and transfers as tables, and files in other formats."""

from ddpbench.analysis.export.benchmark import extra_info
from ddpbench.analysis.export.formats import FORMATS, exported
from ddpbench.analysis.export.steps import (
    STEP_COLUMNS,
    TRANSFER_COLUMNS,
    load_steps,
    load_transfers,
)

__all__ = [
    "FORMATS",
    "STEP_COLUMNS",
    "TRANSFER_COLUMNS",
    "exported",
    "extra_info",
    "load_steps",
    "load_transfers",
]
