"""The cases and launches of a merged run: every case once, and launches copied under rounds of their own.

A round of one run is not a round of another: the second run's are counted on from the first's, so that a verdict is
only ever given on launches that one session ran in one round.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpbench.launch.merge.sources import Source
from ddpbench.records import LaunchDir, RunDir
from ddpbench.records.sessions import UNKNOWN, Sessions

_KEPT = (".json", ".jsonl", ".log")
"""What is copied of a launch's folder; the rest is scratch."""


@dataclass(slots=True)
class Merged:
    """A finished merge: the new run, and what was not taken over, a sentence each."""

    run: RunDir
    launches: int = 0
    left_out: list[str] = field(default_factory=list)


def all_cases(sources: Sequence[Source]) -> dict[str, dict[str, Any]]:
    """Return every case once, runnable where it was in some run, and oversubscribed only if it always was."""
    found: dict[str, dict[str, Any]] = {}
    for source in sources:
        for entry in source.plan["cases"]:
            known = found.get(entry["case_id"])
            if known is None or (known["skip_reason"] is not None and entry["skip_reason"] is None):
                found[entry["case_id"]] = dict(entry)
            elif entry["skip_reason"] is None:
                known["added_as_baseline"] &= entry["added_as_baseline"]
                known["oversubscribed"] &= entry["oversubscribed"]
    return found


def copy_case(
    source: Source, case_id: str, entry: Mapping[str, Any], offset: int, merged: Merged
) -> list[int]:
    """Copies a case's finished launches; returns their rounds as the source counts them."""
    own = next((one for one in source.plan["cases"] if one["case_id"] == case_id), None)
    if own is None:
        return []
    launches = source.run.launches(case_id)
    finished = [launch for launch in launches if launch.outcome.exists()]
    if own["oversubscribed"] and not entry["oversubscribed"]:
        if finished:
            merged.left_out.append(
                f"{_launches(len(finished))} of {case_id} in {source.path}: more ranks than cores there, and in "
                "another run it had enough"
            )
        return []
    if len(finished) < len(launches):
        count = len(launches) - len(finished)
        merged.left_out.append(f"{_launches(count)} of {case_id} in {source.path}: unfinished")
    rounds = []
    sessions = Sessions.of(source.run)
    for launch in finished:
        number = int(launch.path.name.removeprefix("launch-"))
        _copy_launch(
            launch, merged.run.launch(case_id, "measure", offset + number), offset + number, sessions
        )
        rounds.append(number)
    merged.launches += len(finished)
    return rounds


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count != 1 else ''}"


def _copy_launch(source: LaunchDir, target: LaunchDir, number: int, sessions: Sessions = UNKNOWN) -> None:
    """Copies a launch under another round, and notes the session that ran it: `sessions` tell where it does not."""
    target.path.mkdir(parents=True)
    for path in source.path.iterdir():
        if path.is_file() and path.suffix in _KEPT:
            shutil.copyfile(path, target.path / path.name)
    for path in (target.request, target.outcome):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            data["round"] = number
            if path == target.outcome:
                data["session"] = sessions.session_of(data.get("session", ""), data.get("started_utc", ""))
        except (FileNotFoundError, ValueError, TypeError):
            continue  # a damaged one stays as it is, and is reported as damaged when it is read
        write_json(path, data)


def copy_proofs(sources: Sequence[Source], cases: Mapping[str, Any], run: RunDir) -> None:
    """Copies one proof a case: a failed one if there is any, so that no merge hides it."""
    for case_id in cases:
        proofs = [source.run.launch(case_id, "proof") for source in sources]
        proofs = [proof for proof in proofs if proof.outcome.exists()]
        proofs.sort(key=_passed)
        if proofs:
            _copy_launch(proofs[0], run.launch(case_id, "proof"), 0)


def _passed(proof: LaunchDir) -> bool:
    try:
        return bool(json.loads(proof.outcome.read_text(encoding="utf-8"))["status"] == "ok")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes a JSON object."""
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
