"""The one writer of a rank's record file: appends lines and flushes them; nobody else writes there."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

from ddpbench.records.schema import Record, as_json


class RecordWriteError(Exception):
    """A record could not be written: not the training's failure, and not one to record."""


class RecordWriter:
    """Appends records to one file. Call it outside timed regions."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, *records: Record) -> None:
        """Appends the records, each a line, and flushes them together."""
        lines = [json.dumps(as_json(record), separators=(",", ":"), allow_nan=True) for record in records]
        try:
            self._file.write("".join(f"{line}\n" for line in lines))
            self._file.flush()
        except OSError as error:
            raise RecordWriteError(str(error)) from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
