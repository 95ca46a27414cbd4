"""Find a run's finished launches, their outcomes, and whether their cases are worth launching again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from ddpbench.records import Address, Block, LaunchOutcome, LaunchRecords, RunDir, Status, read_launch
from ddpbench.records.rundir import Purpose
from ddpbench.spec import Case

GIVE_UP_AFTER = 2
"""Number of failed launches after which a case without a successful launch is not launched again."""
LaunchKey = tuple[str, Purpose, int]
"""Key of a launch in a plan: case id, purpose, round."""
_STATUSES: tuple[Status, ...] = get_args(Status)
_NOT_FINISHED, _OK = 0, 1 + _STATUSES.index("ok")


def finished_launches(
    run: RunDir, cases: Sequence[Case], run_id: str
) -> tuple[dict[LaunchKey, LaunchOutcome], set[LaunchKey]]:
    """Return the outcomes that earlier sessions left in a run, and the keys of damaged launches.

    A successful launch in which some rank lacks timed steps counts as damaged. Folders with another launch's records
    are ignored.
    """
    outcomes: dict[LaunchKey, LaunchOutcome] = {}
    damaged: set[LaunchKey] = set()
    for case in cases:
        case_id = case.case_id
        for directory in [run.launch(case_id, "proof"), *run.launches(case_id)]:
            purpose: Purpose = "measure" if directory.number is not None else "proof"
            records = read_launch(directory, Address(case, case_id, purpose, directory.number or 0, run_id))
            outcome = records.outcome
            if outcome is None:
                continue
            key = (case_id, outcome.purpose, outcome.round)
            outcomes[key] = outcome
            if (
                records.damage
                or (records.left_out and len(records.ranks) < len(outcome.exit_codes))
                or (purpose == "measure" and outcome.status == "ok" and not _timed(records))
            ):
                damaged.add(key)
    return outcomes, damaged


def _timed(records: LaunchRecords) -> bool:
    assert records.outcome is not None
    timed = sum(any(block.phase == "timed" for block in rank.of(Block)) for rank in records.ranks)
    return timed >= len(records.outcome.exit_codes)


class Endings:
    """Stores how each launch of a plan ended, in one byte per launch.

    The bytes are allocated in advance, so that memory does not grow during a sweep.
    """

    def __init__(self, case_ids: Iterable[str], rounds: int) -> None:
        """Allocate the bytes. `rounds` is the plan's maximum; launches of later rounds are not stored."""
        self._ends = {case_id: bytearray(1 + rounds) for case_id in case_ids}

    def __len__(self) -> int:
        return sum(len(ends) - ends.count(_NOT_FINISHED) for ends in self._ends.values())

    def __getitem__(self, key: LaunchKey) -> Status | None:
        """Return how a launch ended; None if it is unfinished or not in the plan."""
        case_id, purpose, number = key
        ends, at = self._ends.get(case_id, b""), _place(purpose, number)
        return _STATUSES[ends[at] - 1] if at < len(ends) and ends[at] else None

    def __setitem__(self, key: LaunchKey, status: Status | None) -> None:
        case_id, purpose, number = key
        ends, at = self._ends.get(case_id), _place(purpose, number)
        if ends is not None and at < len(ends):
            ends[at] = _NOT_FINISHED if status is None else 1 + _STATUSES.index(status)

    def finished(self) -> Iterator[LaunchKey]:
        """Yield the keys of the finished launches."""
        for case_id, ends in self._ends.items():
            if ends[0]:
                yield case_id, "proof", 0
            for number, end in enumerate(ends[1:]):
                if end:
                    yield case_id, "measure", number

    def unfinished(self, case_id: str, rounds: int) -> int:
        """Return how many of a case's launches in the first `rounds` rounds are not finished."""
        measured = self._ends.get(case_id, b"")[1 : 1 + rounds]
        return rounds - len(measured) + measured.count(_NOT_FINISHED)

    def given_up(self, case_id: str) -> bool:
        """Return whether a case's proof failed, or at least `GIVE_UP_AFTER` launches failed and none succeeded.

        Such a case is not launched again.
        """
        if self[case_id, "proof", 0] not in (None, "ok"):
            return True
        measured = self._ends.get(case_id, b"")[1:]
        return not measured.count(_OK) and len(measured) - measured.count(_NOT_FINISHED) >= GIVE_UP_AFTER

    def is_ok(self, case_id: str, rounds_min: int) -> bool:
        """Return whether a case's proof and at least `rounds_min` of its launches succeeded, as reports require."""
        ends = self._ends.get(case_id, b"")
        return self[case_id, "proof", 0] == "ok" and ends.count(_OK, 1) >= rounds_min


def _place(purpose: Purpose, number: int) -> int:
    """Return a launch's index among its case's: 0 for the proof, then the rounds."""
    return 0 if purpose == "proof" else 1 + number
