"""The cases and launches of a merged run, which has every case once, and all launches under new round numbers.

Each run's rounds follow on from those of the run before it. Verdicts compare only launches of one session and round.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddpbench.errors import RequestError, UnreadableError
from ddpbench.launch.merge.sources import Source
from ddpbench.records import Address, LaunchDir, LaunchOutcome, RankStart, RunDir
from ddpbench.records.archive import DiskSpace
from ddpbench.records.files import (
    MOST_OUTCOME,
    copy_file,
    field_lines,
    first_line,
    most_of,
    parse_json,
    read_bytes,
    write_anew,
)
from ddpbench.records.reader import read_outcome, stray_rank
from ddpbench.records.schema import as_json, record_from_json
from ddpbench.records.sessions import UNKNOWN, Sessions
from ddpbench.spec import Case


class TooLargeError(RequestError):
    """A run has too many records and logs to be merged."""


@dataclass(slots=True)
class Merged:
    """The result of a merge.

    `launches` counts copied launches; `left_out` has sentences that say what was not copied.
    """

    run: RunDir
    run_id: str
    launches: int = 0
    left_out: list[str] = field(default_factory=list)
    remove: Callable[[], None] = lambda: None
    """Removes the new run. If it was renamed and a different folder has its name, that folder stays."""
    spaces: defaultdict[Path, DiskSpace] = field(default_factory=lambda: defaultdict(DiskSpace))
    """Size of what was copied from each source, by the source's path."""


def all_cases(sources: Sequence[Source]) -> dict[str, dict[str, Any]]:
    """Return, by case id, a plan entry for each case that any source has.

    A case is runnable if one source could run it. It is oversubscribed if all sources that could run it say so.
    """
    cases: dict[str, dict[str, Any]] = {}
    for source in sources:
        for entry in source.plan["cases"]:
            known = cases.get(entry["case_id"])
            if known is None or (known["skip_reason"] is not None and entry["skip_reason"] is None):
                cases[entry["case_id"]] = dict(entry)
            elif entry["skip_reason"] is None:
                known["added_as_baseline"] &= entry["added_as_baseline"]
                known["oversubscribed"] &= entry["oversubscribed"]
    return cases


def cases_taken(source: Source, cases: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Return the ids of a source's cases whose launches are to be copied. `cases` is the result of `all_cases`."""
    return frozenset(
        own["case_id"] for own in source.plan["cases"] if not _is_crowded(own, cases[own["case_id"]])
    )


def _is_crowded(own: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    return bool(own["oversubscribed"] and not entry["oversubscribed"])


def copy_case(
    source: Source,
    case_id: str,
    entry: Mapping[str, Any],
    offset: int,
    merged: Merged,
    *,
    order: Set[tuple[int, str]],
) -> list[int]:
    """Copy a case's finished launches from a source into the merged run, with `offset` added to their round numbers.

    `order` has the rounds and case ids of the launches in the source's plan. Returns the launches' round numbers in the
    source.

    Raises:
        TooLargeError: the source's launches exceed the limits of an archive.
    """
    own = next((one for one in source.plan["cases"] if one["case_id"] == case_id), None)
    if own is None:
        return []
    case = Case.from_json(dict(own))
    found = [
        _found(source, launch, Address(case, case_id, "measure", launch.number or 0, source.stored.run_id))
        for launch in source.run.launches(case_id)
        if (launch.number, case_id) in order
    ]
    strays = len(source.run.launches(case_id)) - len(found)
    strays += sum(one.mixed_up for one in found)
    if strays:
        merged.left_out.append(
            f"{_launches(strays)} of {case_id} in {source.path}: not in its plan, or holding another "
            "launch's records"
        )
    launches = [one for one in found if not one.mixed_up]
    finished = [one for one in launches if one.finished]
    if _is_crowded(own, entry):
        if finished:
            merged.left_out.append(
                f"{_launches(len(finished))} of {case_id} in {source.path}: oversubscribed there, but "
                "not in another of the runs"
            )
        return []
    if len(finished) < len(launches):
        count = len(launches) - len(finished)
        merged.left_out.append(f"{_launches(count)} of {case_id} in {source.path}: unfinished")
    rounds = []
    sessions = Sessions.of(source.run)
    for one in finished:
        number = one.address.round
        _copy_launch(one, offset + number, merged, sessions)
        rounds.append(number)
    merged.launches += len(finished)
    return rounds


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count != 1 else ''}"


@dataclass(frozen=True, slots=True)
class _Found:
    source: Source
    directory: LaunchDir
    address: Address
    finished: bool
    outcome: LaunchOutcome | None
    """None if missing or damaged. A damaged outcome is still copied, and is reported when the merged run is read."""
    mixed_up: bool


def _found(source: Source, directory: LaunchDir, address: Address) -> _Found:
    outcome = None
    with contextlib.suppress(OSError, UnreadableError):
        outcome = read_outcome(directory)
    mixed_up = outcome is not None and address.misfit(outcome, directory) != ""
    return _Found(source, directory, address, directory.outcome.exists(), outcome, mixed_up)


def _copy_launch(found: _Found, number: int, merged: Merged, sessions: Sessions = UNKNOWN) -> None:
    """Copy a launch's files into the merged run as round `number`, and rename it in them.

    If the outcome names no session, it is taken from `sessions`.

    Raises:
        TooLargeError: what was copied from the source so far exceeds the limits of an archive.
    """
    source, outcome = found.directory, found.outcome
    space = merged.spaces[found.source.path]
    target = merged.run.launch(found.address.case_id, found.address.purpose, number)
    target.path.mkdir(parents=True)
    for path in (source.request, source.outcome, *source.rank_files(), *source.log_files()):
        if path.name.startswith("rank-") and stray_rank(path, outcome):
            merged.left_out.append(f"{path}: its launch has no such rank")
            continue
        copy = target.path / path.name
        try:
            first, size = first_line(path, most_of(path.name))
            # Before anything is written, and also for files that are left out, because they too take time.
            if space.too_large_with(copy.relative_to(merged.run.path).as_posix(), size):
                raise TooLargeError(
                    f"{found.source.path} has more records and logs than ddpbench merges from one run "
                    f"({space.limits}): leave this run out"
                )
            start = _start_in(first) if path.suffix == ".jsonl" else None
            if start is not None and (why := found.address.misfit_rank(start, path, outcome)):
                merged.left_out.append(f"{path}: {why}")
                continue
            copy_file(path, copy, most_of(path.name))
        except FileNotFoundError:
            continue
        except UnreadableError as error:
            merged.left_out.append(str(error))
            continue
        if start is not None:
            _readdress(copy, start, found, number, merged.run_id)
    changes: dict[str, Any] = {"round": number, "run_id": merged.run_id}
    _change(target.request, changes)
    if outcome is not None:
        session = sessions.session_of(outcome.session, outcome.started_utc)
        _change(target.outcome, {**changes, "session": session})


def _change(path: Path, changes: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError, ValueError, TypeError, UnreadableError):
        write_json(path, {**parse_json(read_bytes(path, MOST_OUTCOME)), **changes})


def _start_in(line: bytes) -> RankStart | None:
    """Return a line's start record, or None; damage is reported when the merged run is read."""
    try:
        start = record_from_json(line)
    except ValueError:
        return None
    return start if isinstance(start, RankStart) else None


def _readdress(path: Path, start: RankStart, found: _Found, number: int, run_id: str) -> None:
    _, newline, rest = path.read_bytes().partition(b"\n")
    outcome = found.outcome
    now = replace(
        start,
        case_id=outcome.case_id if outcome is not None else found.address.case_id,
        round=number,
        ranks=(len(outcome.exit_codes) if outcome is not None else 0) or start.ranks,
        run_id=run_id,
    )
    line = json.dumps(as_json(now), separators=(",", ":")).encode()
    write_anew(path, line + newline + rest)


def copy_proofs(sources: Sequence[Source], cases: Mapping[str, Any], merged: Merged) -> None:
    """Copy one proof for each case, a failed one if there is any, so that no failure is hidden.

    Raises:
        TooLargeError: a source's proofs and launches together exceed the limits of an archive.
    """
    for case_id, entry in cases.items():
        case = Case.from_json(entry)
        proofs = [
            _found(
                source,
                source.run.launch(case_id, "proof"),
                Address(case, case_id, "proof", 0, source.stored.run_id),
            )
            for source in sources
            if case_id in source.stored.ids
        ]
        proofs = [proof for proof in proofs if proof.finished and not proof.mixed_up]
        proofs.sort(key=lambda proof: proof.outcome is not None and proof.outcome.status == "ok")
        if proofs:
            _copy_launch(proofs[0], 0, merged)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON object to a file. An existing file or link at the path is replaced."""
    write_anew(path, field_lines(data))
