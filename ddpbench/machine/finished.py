"""Launches that are finished: what a run holds of them, and what they say of their case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpbench.records import Address, LaunchOutcome, RunDir, read_launch
from ddpbench.records.rundir import Purpose
from ddpbench.spec import Case

GIVE_UP_AFTER = 2
"""A case that failed this often and never succeeded is not launched again."""
Key = tuple[str, Purpose, int]
"""A launch of a plan: case id, purpose, round."""


def finished_launches(
    run: RunDir, cases: Sequence[Case], run_id: str
) -> tuple[dict[Key, LaunchOutcome], set[Key]]:
    """Return the outcomes earlier sessions left in a run, and which of those launches have damaged records.

    A folder that holds another launch's records is none of a finished launch.
    """
    outcomes: dict[Key, LaunchOutcome] = {}
    damaged: set[Key] = set()
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
            if records.damage or (records.left_out and len(records.ranks) < len(outcome.exit_codes)):
                damaged.add(key)
    return outcomes, damaged


def given_up(case_id: str, outcomes: Mapping[Key, LaunchOutcome]) -> bool:
    """Return whether launching a case again would teach nothing: its proof failed, or it keeps failing."""
    proof = outcomes.get((case_id, "proof", 0))
    if proof is not None and proof.status != "ok":
        return True
    statuses = [
        outcome.status
        for (other, purpose, _), outcome in outcomes.items()
        if other == case_id and purpose == "measure"
    ]
    return "ok" not in statuses and len(statuses) >= GIVE_UP_AFTER


def is_ok(case_id: str, outcomes: Mapping[Key, LaunchOutcome], rounds_min: int) -> bool:
    """Return whether a case is ok as the report counts: proved, and launched well as often as was asked at least."""
    proof = outcomes.get((case_id, "proof", 0))
    if proof is None or proof.status != "ok":
        return False
    well = [
        outcome
        for (other, purpose, _), outcome in outcomes.items()
        if other == case_id and purpose == "measure" and outcome.status == "ok"
    ]
    return len(well) >= rounds_min
