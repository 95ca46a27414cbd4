"""The table of a run as a frame, with one row per case and exactly the columns `COLUMNS`, and its CSV file."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.table.columns import COLUMNS, DTYPES, TABLE
from ddpbench.analysis.table.result import CaseResult, case_results
from ddpbench.errors import OutputError
from ddpbench.escaping import escape_csv, unescape_csv
from ddpbench.records import RunDir, explain_os_error, write_atomically
from ddpbench.records.plan import StoredPlan

_ALWAYS = COLUMNS[: COLUMNS.index("dilation") + 1]
"""Columns that tables of all versions have."""


def case_table(plan: StoredPlan, cases: Sequence[CaseRun], machine: Mapping[str, Any]) -> pd.DataFrame:
    """Compute the table of cases that were already read. `machine` is the contents of `machine.json`."""
    return table_of(case_results(cases, plan.target_half_widths(), machine))


def table_of(results: Sequence[CaseResult]) -> pd.DataFrame:
    """Return the table of cases, made from their results."""
    columns: dict[str, Any] = {}
    for column in TABLE:
        values = [column.value(result) for result in results]
        if column.kind == "text":
            values = [value if value != "" else None for value in values]
        columns[column.name] = _array(values, column.dtype)
    return pd.DataFrame(columns, index=pd.RangeIndex(len(results)))


def _array(values: Sequence[Any], dtype: str) -> Any:
    """Return a column's values as an array: a frame of hundreds of series takes four times as long to make."""
    return np.array(values, dtype) if dtype == "float64" else pd.array(values, dtype=dtype)  # type: ignore[call-overload]


def csv_of(frame: pd.DataFrame) -> str:
    """Return a table as CSV. Texts are escaped by `escape_csv`, and numbers are unchanged."""
    text: str = _with_texts(frame, escape_csv).to_csv(index=False, lineterminator="\n")
    return text


def _with_texts(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
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
    """Write `cases.csv`, and also `cases.parquet` if pyarrow is installed. Return the path of `cases.csv`.

    Raises:
        OutputError: a file cannot be written.
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
    """Read a table from its file, with its original dtypes.

    Columns of a later version are kept, and columns that the file's version lacked are empty. The escapes that
    `csv_of` adds to texts are removed; only control characters are not restored.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a table of cases.
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
