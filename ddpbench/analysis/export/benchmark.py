"""What a benchmark's `extra_info` holds in files of pytest-benchmark: enough of a case to compare it again.

The columns of the case's row, and beside them `schema_version`, `identity` (of `machine.json`), and of each launch
`steps_s`, `launch_steps`, `launch_samples` and `sessions`. The plugin and `ddpbench export` write it from here;
`analysis/regression/saved.py` reads it. Parts of a step, and whatever else records hold, are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.records import SCHEMA_VERSION


def extra_info(run: CaseRun, row: Mapping[Any, Any], identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case as plain values, those that it has none of left out.

    Args:
        run: the case with its launches; only the good ones count.
        row: its row of `cases.csv`.
        identity: what it was measured on, and what with.
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
