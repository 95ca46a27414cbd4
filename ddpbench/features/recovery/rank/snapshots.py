"""Write and read snapshots from which training can be resumed; rank 0 writes atomically, and all ranks read.

A snapshot is complete once a second file with its length and checksum exists, because torch.load does not detect
changed bytes (seen with torch 2.13).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ddpbench.errors import UnreadableError
from ddpbench.records.files import create_file, open_file, write_atomically
from ddpbench.spec.recoveries import KEPT_SNAPSHOTS


class _Summing:
    def __init__(self, file: BinaryIO, on_bytes: Callable[[int], None]) -> None:
        self._file, self._on_bytes = file, on_bytes
        self.length = self.checksum = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.checksum = zlib.crc32(view, self.checksum)
        self._file.write(view)
        self.length += len(view)
        self._on_bytes(self.length)
        return len(view)

    def flush(self) -> None:
        self._file.flush()


@dataclass(frozen=True, slots=True)
class Snapshots:
    """A folder of snapshots that all ranks can read."""

    folder: Path

    def _data(self, step: int) -> Path:
        return self.folder / f"snapshot-{step:09d}.pt"

    def _checksum_file(self, step: int) -> Path:
        return self._data(step).with_suffix(".json")

    def write(
        self, step: int, state: dict[str, Any], on_bytes: Callable[[int], None] = lambda _: None
    ) -> int:
        """Write a snapshot, and delete all but the last few. Return its size in bytes.

        During writing, `on_bytes` is called with the number of bytes written so far.

        Raises:
            OSError: the snapshot cannot be written.
        """
        for stale in (self._checksum_file(step), self._data(step)):  # left by an earlier gang
            stale.unlink(missing_ok=True)
        with create_file(self._data(step)) as file:
            summing = _Summing(file, on_bytes)
            target: Any = summing  # torch only calls write and flush
            torch.save(state, target)
            file.flush()
            os.fsync(file.fileno())
        checksums = {"bytes": summing.length, "crc32": summing.checksum}
        write_atomically(self._checksum_file(step), json.dumps(checksums))
        for old in self._steps()[:-KEPT_SNAPSHOTS]:
            self._checksum_file(old).unlink(missing_ok=True)
            self._data(old).unlink(missing_ok=True)
        return summing.length

    def _steps(self) -> list[int]:
        return sorted(int(path.stem.partition("-")[2]) for path in self.folder.glob("snapshot-*.pt"))

    def newest(self) -> tuple[int | None, tuple[str, ...]]:
        """Return the step of the newest complete snapshot, or None, and what is wrong with each later snapshot."""
        unreadable: list[str] = []
        for step in reversed(self._steps()):
            problem = self._problem(step)
            if not problem:
                return step, tuple(unreadable)
            unreadable.append(f"the snapshot of step {step} {problem}")
        return None, tuple(unreadable)

    def _problem(self, step: int) -> str:
        try:
            checksums = json.loads(self._checksum_file(step).read_bytes())
        except FileNotFoundError:
            return "was not finished"
        except (OSError, ValueError) as error:
            return f"cannot be read: {error}"
        checksum = length = 0
        try:
            with os.fdopen(open_file(self._data(step), None), "rb") as file:
                while part := file.read(1 << 22):
                    checksum, length = zlib.crc32(part, checksum), length + len(part)
        except (OSError, UnreadableError) as error:
            return f"cannot be read: {error}"
        if length != checksums.get("bytes"):
            return f"is torn: {length:,} of {checksums.get('bytes', 0):,} bytes"
        return "" if checksum == checksums.get("crc32") else "is damaged: its checksum is another"

    def read(self, step: int) -> dict[str, Any]:
        """Return the content of a complete snapshot.

        Raises:
            OSError, RuntimeError: the file is missing, or not a snapshot.
        """
        state: dict[str, Any] = torch.load(self._data(step), weights_only=True, map_location="cpu")
        return state
