"""The `extra_info` of a benchmark in pytest-benchmark's files, with the data needed to compare the case later.

It has the columns of the case's row, `schema_version`, `identity` (of `machine.json`), and for each launch `steps_s`,
`launch_steps`, `launch_samples` and `sessions`. `analysis/regression/saved.py` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.records import SCHEMA_VERSION


def extra_info(run: CaseRun, row: Mapping[Any, Any], identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case's results as plain values by name. Names without a value are left out.

    Args:
        run: the case with its launches; only successful launches are used.
        row: the case's row of `cases.csv`.
        identity: the machine and the software of the measurement.
    """
    sessions = {name: index for index, name in enumerate(dict.fromkeys(one.session for one in run.timings))}
    return {
        **_plain(row),
        "schema_version": SCHEMA_VERSION,
        "identity": dict(identity),
        "steps_s": [timing.step_s for timing in run.timings],
        "launch_steps": [timing.steps for timing in run.timings],
        "launch_samples": [timing.samples for timing in run.timings],
        "sessions": [sessions[timing.session] for timing in run.timings],
    }


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    found = {str(key): value for key, value in row.items() if not pd.isna(value)}
    return {key: value.item() if hasattr(value, "item") else value for key, value in found.items()}
