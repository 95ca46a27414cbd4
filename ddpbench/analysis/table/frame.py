"""The table of a run: one row per case, exactly `COLUMNS`; its CSV file, written and read back."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.recovery import loss_difference
from ddpbench.analysis.table.columns import COLUMNS, DTYPES, TABLE
from ddpbench.analysis.table.row import compute_times, row_of
from ddpbench.errors import OutputError
from ddpbench.escaping import escape_csv, unescape_csv
from ddpbench.records import RunDir, explain_os_error, write_atomically
from ddpbench.records.plan import StoredPlan

_ALWAYS = COLUMNS[: COLUMNS.index("dilation") + 1]
"""What every table has."""


def case_table(plan: StoredPlan, cases: Sequence[CaseRun], machine: Mapping[str, Any]) -> pd.DataFrame:
    """Return the table of cases already read; `machine` is machine.json."""
    by_id = {case.case_id: case for case in cases}
    computing, target = compute_times(cases), plan.budget.target_half_width
    rows = [
        row_of(case, by_id.get(case.baseline_id), computing, target, machine)
        | dict(
            zip(
                ("recovery_loss_difference", "recovery_loss_steps"),
                _loss_difference(case, by_id),
                strict=True,
            )
        )
        for case in cases
    ]
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in COLUMNS}
    for column in TABLE:
        if column.kind == "text":
            columns[column.name] = [value if value != "" else None for value in columns[column.name]]
    return pd.DataFrame({name: pd.Series(columns[name], dtype=DTYPES[name]) for name in COLUMNS})


def _loss_difference(run: CaseRun, by_id: Mapping[str, CaseRun]) -> tuple[float, int] | tuple[None, None]:
    """Return how far a case's losses are from the uninterrupted training's, launch by launch of the same round.

    And over how many steps at least. None where there is nothing to hold them against.
    """
    if run.case.recovery in ("off", "uninterrupted", "leave"):  # with fewer ranks other losses are right
        return None, None
    wanted = by_id.get(replace(run.case, recovery="uninterrupted").case_id)
    curves = {each.round: each.recovered.losses for each in (wanted.good if wanted else ()) if each.recovered}
    pairs = [
        found
        for each in run.good
        if each.recovered is not None and each.round in curves
        if (found := loss_difference(each.recovered.losses, curves[each.round])) is not None
    ]
    if not pairs:
        return None, None
    return max(difference for difference, _ in pairs), min(steps for _, steps in pairs)


def csv_of(frame: pd.DataFrame) -> str:
    """Return a table as CSV; texts are escaped by `escape_csv`, numbers are as they are."""
    text: str = _with_texts(frame, escape_csv).to_csv(index=False, lineterminator="\n")
    return text


def _with_texts(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """Return a table with its texts changed, in whichever columns they are."""
    columns = {
        str(name): pd.Series(
            [change(value) if isinstance(value, str) else value for value in frame[name]],
            dtype=kind,
            index=frame.index,
        )
        for name, kind in frame.dtypes.items()
        if pd.api.types.is_string_dtype(kind)
    }
    return frame.assign(**columns)


def write_csv(frame: pd.DataFrame, run: RunDir) -> Path:
    """Writes `cases.csv`, and `cases.parquet` where pyarrow is installed; returns the former's path.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        write_atomically(run.table, csv_of(frame))
        if importlib.util.find_spec("pyarrow") is not None:
            content = frame.to_parquet(None, index=False)
            write_atomically(run.table.with_suffix(".parquet"), content)
    except OSError as error:
        raise OutputError(f"{run.table} cannot be written: {explain_os_error(error)}") from None
    return run.table


def read_csv(path: Path) -> pd.DataFrame:
    """Return a table back from its file, with the dtypes it was written with; columns of a later version are kept.

    Texts are what they were before `csv_of`, but for control characters.

    Columns that its version did not have yet are empty.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a table.
    """
    text = path.read_text(encoding="utf-8")
    names = text.partition("\n")[0].split(",")
    missing = [name for name in _ALWAYS if name not in names]
    if missing:
        raise ValueError(f"{path} is not a table of cases: the columns {', '.join(missing[:5])} are missing")
    frame = pd.read_csv(
        io.StringIO(text),
        dtype={name: dtype for name, dtype in DTYPES.items() if name in names},
        keep_default_na=False,
        na_values=[""],
    )
    frame = _with_texts(frame, unescape_csv)
    lacking = {
        str(name): pd.Series([None] * len(frame), dtype=DTYPES[name]) for name in COLUMNS if name not in names
    }
    return pd.concat([frame, pd.DataFrame(lacking, index=frame.index)], axis=1) if lacking else frame
