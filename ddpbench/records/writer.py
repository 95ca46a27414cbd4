"""Append records to a rank's file."""

from __future__ import annotations

import json
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from ddpbench.records.files import open_to_append
from ddpbench.records.schema import Record, as_json, record_from_json, records_from_json
from ddpbench.text_safety import within


class RecordWriteError(Exception):
    """A record could not be written. This is not a failure of the training, and it cannot be recorded."""


def leave_forked() -> NoReturn:
    """End this process, a fork made by a rank's workload, because it has returned from the workload's code."""
    print(  # noqa: T201
        f"ddpbench: process {os.getpid()}, which the workload forked, returned from the workload's code, so "
        "ddpbench ended it. A forked process must end itself with os._exit, as those of multiprocessing do",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


_AT_ONCE = 1000
"""Largest number of records to parse back at once. More would noticeably increase the rank's reported memory."""


def _line(record: Record) -> str:
    try:
        return json.dumps(as_json(record), separators=(",", ":"), allow_nan=True) + "\n"
    except (TypeError, ValueError) as error:
        what = getattr(record, "kind", type(record).__name__)
        raise ValueError(f"{_UNREADABLE}: {what}: {error}") from None


def _check(lines: list[str]) -> None:
    try:
        records_from_json("".join(lines).encode())
    except ValueError:
        for line in lines:  # reports the line and its fault
            try:
                record_from_json(line.encode())
            except ValueError as error:
                raise ValueError(f"{_UNREADABLE}: {error}; it is {within(line.strip(), 300)}") from None
        raise


_UNREADABLE = "a record that the strategy or the workload gave cannot be read back"


class RecordWriter:
    """A writer that appends records to one file. Use it only outside timed regions."""

    def __init__(self, path: Path) -> None:
        self._file = TextIOWrapper(open_to_append(path), encoding="utf-8")
        self._pid = os.getpid()

    def write(self, *records: Record) -> None:
        """Append the records, one per line, and flush them together.

        Raises:
            ValueError: a record could not be read back; none is written.
            RecordWriteError: the file cannot be written.
        """
        if os.getpid() != self._pid:
            leave_forked()
        lines = [_line(record) for record in records]
        for first in range(0, len(lines), _AT_ONCE):
            _check(lines[first : first + _AT_ONCE])
        try:
            self._file.write("".join(lines))
            self._file.flush()
        except OSError as error:
            raise RecordWriteError(str(error)) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
