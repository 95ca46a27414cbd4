"""Reads record files back. A torn last line (a rank was killed while writing) is reported, not fatal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ddpbench.errors import RecordError
from ddpbench.records.outcome import LaunchOutcome, outcome_from_json
from ddpbench.records.rundir import LaunchDir
from ddpbench.records.schema import SCHEMA_VERSION, Record, record_from_json, records_from_json

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True, slots=True)
class RankRecords:
    """One rank's records in the order they were written."""

    path: Path
    records: tuple[Record, ...]
    torn_line: int | None = None

    def of(self, kind: type[_R]) -> list[_R]:
        """Return the records of one kind, in order."""
        return [record for record in self.records if isinstance(record, kind)]

    def last(self, kind: type[_R]) -> _R | None:
        """Return the last record of a kind, or None."""
        found = self.of(kind)
        return found[-1] if found else None

    @property
    def rank(self) -> int:
        """The rank that wrote them, from the file's name."""
        return int(self.path.name[5:10])


@dataclass(frozen=True, slots=True)
class LaunchRecords:
    """A launch: its ranks' records and its outcome, None while unfinished."""

    directory: LaunchDir
    ranks: tuple[RankRecords, ...]
    outcome: LaunchOutcome | None = None
    damage: tuple[str, ...] = field(default=())


def read_rank(path: Path) -> RankRecords:
    """Return all records of one file.

    Raises:
        RecordError: a line other than the last is not a record, or the file has another schema.
    """
    lines = path.read_bytes().split(b"\n")
    complete, rest = lines[:-1], lines[-1]
    try:
        records = records_from_json(complete)
    except ValueError:
        records = _one_by_one(path, complete)
    for number, record in enumerate(records, start=1):
        if record.kind == "start" and record.schema_version != SCHEMA_VERSION:
            message = f"schema {record.schema_version}; this ddpbench reads schema {SCHEMA_VERSION}"
            raise RecordError(f"{path}, line {number}: {message}")
    return RankRecords(path, tuple(records), torn_line=len(lines) if rest else None)


def _one_by_one(path: Path, lines: Sequence[bytes]) -> list[Record]:
    """Return the same, slower: says which line is wrong."""
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(record_from_json(line))
        except ValueError as error:
            raise RecordError(f"{path}, line {number}: not a record: {error}") from None
    return records


def read_launch(directory: LaunchDir) -> LaunchRecords:
    """Return a launch's records. What cannot be read is named in `damage`; that rank's records are then missing."""
    ranks: list[RankRecords] = []
    damage: list[str] = []
    for path in directory.rank_files():
        try:
            rank = read_rank(path)
        except (RecordError, OSError) as error:
            damage.append(str(error))
            continue
        if rank.torn_line is not None:
            damage.append(f"{path}, line {rank.torn_line}: torn (its end is missing)")
        ranks.append(rank)
    outcome: LaunchOutcome | None = None
    try:
        outcome = outcome_from_json(directory.outcome.read_bytes())
    except FileNotFoundError:
        pass
    except (ValueError, OSError) as error:
        damage.append(f"{directory.outcome}: not an outcome: {error}")
    return LaunchRecords(directory, tuple(ranks), outcome, tuple(damage))
