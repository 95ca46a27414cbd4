"""Read record files; an incomplete last line of a rank that was killed while writing is not an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ddpbench.errors import RecordError, UnreadableError
from ddpbench.records.address import Address, LeftOut, rank_of
from ddpbench.records.files import MOST_OUTCOME, MOST_RECORDS, read_bytes
from ddpbench.records.outcome import LaunchOutcome, outcome_from_json
from ddpbench.records.rundir import LaunchDir, rank_file
from ddpbench.records.schema import (
    SCHEMA_VERSION,
    Met,
    RankOutcome,
    RankStart,
    Record,
    check_counts,
    record_from_json,
    records_from_json,
)

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True, slots=True)
class RankRecords:
    """The records of one rank, in the order in which they were written."""

    path: Path
    records: tuple[Record, ...]
    torn_line: int | None = None

    def of(self, kind: type[_R]) -> list[_R]:
        """Return the records of type `kind`, in order."""
        return [record for record in self.records if isinstance(record, kind)]

    def last(self, kind: type[_R]) -> _R | None:
        """Return the last record of type `kind`; None if there is none."""
        found = self.of(kind)
        return found[-1] if found else None

    @property
    def rank(self) -> int:
        """Return the rank that wrote the records, according to the file's name."""
        return rank_of(self.path)[0]

    @property
    def attempt(self) -> int:
        """Return the number of the attempt (start of the rank) that wrote the records.

        If several attempts wrote records, this is the last of them.
        """
        return rank_of(self.path)[1]


@dataclass(frozen=True, slots=True)
class LaunchRecords:
    """The records of a launch's ranks, and the launch's outcome.

    The outcome is None if it is missing, damaged or left out.
    """

    directory: LaunchDir
    ranks: tuple[RankRecords, ...]
    outcome: LaunchOutcome | None = None
    damage: tuple[str, ...] = field(default=())
    left_out: tuple[LeftOut, ...] = ()
    """Files in the launch's folder that do not belong to the launch."""

    @property
    def finished(self) -> bool:
        """Return whether the launch has an outcome or damaged records."""
        return self.outcome is not None or bool(self.damage)


def read_rank(path: Path) -> RankRecords:
    """Read all records of a rank's file.

    Raises:
        RecordError: a complete line is not a record, or the file has a different schema, is not a regular file, or
            contains more than a rank can have written.
        OSError: the file cannot be read.
    """
    data = read_bytes(path, MOST_RECORDS)
    try:
        check_counts(data)
    except ValueError as error:
        raise RecordError(f"{path} {error}") from None
    end = data.rfind(b"\n") + 1
    try:
        records = records_from_json(data[:end])
    except ValueError:
        records = _one_by_one(path, data[:end].split(b"\n")[:-1])
    for number, record in enumerate(records, start=1):
        if record.kind == "start" and record.schema_version != SCHEMA_VERSION:
            message = f"schema {record.schema_version}; this ddpbench reads schema {SCHEMA_VERSION}"
            raise RecordError(f"{path}, line {number}: {message}")
    return RankRecords(path, tuple(records), torn_line=data.count(b"\n") + 1 if data[end:] else None)


def _one_by_one(path: Path, lines: Sequence[bytes]) -> list[Record]:
    """Parse line by line, which is slower than all at once, but lets an error name the line."""
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(record_from_json(line))
        except ValueError as error:
            raise RecordError(f"{path}, line {number}: not a record: {error}") from None
    return records


def read_launch(directory: LaunchDir, address: Address | None = None) -> LaunchRecords:
    """Read a launch's records. `damage` states the ranks whose records cannot be read and are missing.

    Records that do not fit the `address` are listed in `left_out` and not used. Without an `address`, places are not
    checked, and the records of an unfinished launch are also returned.
    """
    ranks: list[RankRecords] = []
    damage: list[str] = []
    left_out: list[LeftOut] = []
    outcome: LaunchOutcome | None = None
    try:
        outcome = read_outcome(directory)
    except FileNotFoundError:
        if address is not None:  # an unfinished launch, whose records are not used
            return LaunchRecords(directory, ())
    except (RecordError, OSError) as error:
        damage.append(str(error))
    if outcome is not None and address is not None and (why := address.misfit(outcome, directory)):
        return LaunchRecords(directory, (), left_out=(LeftOut("mixed up", directory.path, why),))
    files = directory.rank_files()
    for path in files:
        if stray := stray_rank(path, outcome):
            left_out.append(stray)
            continue
        try:
            rank = read_rank(path)
        except (RecordError, OSError) as error:
            damage.append(str(error))
            continue
        if address is not None and (why := _misfit(rank, address, outcome)):
            left_out.append(LeftOut("rank", path, why))
            continue
        if rank.torn_line is not None and (rank.rank, rank.attempt) in _last_attempts(files):
            damage.append(f"{path}, line {rank.torn_line}: torn (its end is missing)")
        ranks.append(rank)
    return LaunchRecords(directory, _merged(ranks), outcome, tuple(damage), tuple(left_out))


def _last_attempts(files: Sequence[Path]) -> set[tuple[int, int]]:
    """Return each rank's last attempt; only earlier ones may end in an incomplete line."""
    last: dict[int, int] = {}
    for rank, attempt in (rank_of(path) for path in files if rank_file(path.name)):
        last[rank] = max(last.get(rank, 0), attempt)
    return set(last.items())


def _merged(ranks: Sequence[RankRecords]) -> tuple[RankRecords, ...]:
    """Merge each rank's attempts: the first `RankStart` and `Met`, and the last `RankOutcome`."""
    by_rank: dict[int, list[RankRecords]] = {}
    for rank in ranks:
        by_rank.setdefault(rank.rank, []).append(rank)
    if len(by_rank) == len(ranks):
        return tuple(ranks)
    merged: list[RankRecords] = []
    for attempts in by_rank.values():
        first, *later = sorted(attempts, key=lambda each: each.attempt)
        found = [record for record in first.records if not isinstance(record, RankOutcome)]
        for each in later:
            found += [
                record for record in each.records if not isinstance(record, RankStart | Met | RankOutcome)
            ]
        ends = [end for each in (first, *later) for end in each.of(RankOutcome)]
        torn = later[-1].torn_line if later else first.torn_line
        merged.append(RankRecords((later or [first])[-1].path, (*found, *ends[-1:]), torn))
    return tuple(merged)


def _misfit(rank: RankRecords, address: Address, outcome: LaunchOutcome | None) -> str:
    start = next((record for record in rank.records if isinstance(record, RankStart)), None)
    return "" if start is None else address.misfit_rank(start, rank.path, outcome)


def read_outcome(directory: LaunchDir) -> LaunchOutcome:
    """Read a launch's outcome.

    Raises:
        FileNotFoundError: the launch is not finished.
        UnreadableError: the outcome is damaged, or not a regular file.
        OSError: the outcome cannot be read.
    """
    data = read_bytes(directory.outcome, MOST_OUTCOME)
    try:
        return outcome_from_json(data)
    except ValueError as error:
        raise UnreadableError(f"{directory.outcome}: not an outcome: {error}") from None


def stray_rank(path: Path, outcome: LaunchOutcome | None) -> LeftOut | None:
    """Return an entry for `left_out` if the file's name does not match a rank of this launch; otherwise None."""
    if not rank_file(path.name):
        return LeftOut("rank", path, "it has no rank's name")
    ranks = len(outcome.exit_codes) if outcome is not None else 0
    if ranks and rank_of(path)[0] >= ranks:
        return LeftOut("rank", path, f"its launch had {ranks} rank{'s' if ranks != 1 else ''}")
    return None
