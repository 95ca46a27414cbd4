"""`plan.json` read back: cases, budget and the order of launches, for whoever carries out or understands a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ddpbench.errors import IdentityError
from ddpbench.records.archive import unpack
from ddpbench.records.request import LaunchRequest
from ddpbench.records.rundir import Purpose, RunDir
from ddpbench.spec import Budget, Case, PlannedCase


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPlan:
    """A run's plan as its directory holds it."""

    experiment: str
    question: str
    budget: Budget
    cases: tuple[PlannedCase, ...]
    ids: tuple[str, ...]
    """The cases' ids as the plan names them, which is how their folders are called."""
    order: tuple[tuple[int, str], ...]
    """(round, case id) of every launch up to `rounds_max`."""

    def case(self, case_id: str) -> PlannedCase | None:
        """Return the planned case of that id."""
        return next((entry for entry in self.cases if entry.case.case_id == case_id), None)

    def request(self, case: Case, purpose: Purpose, round_number: int) -> LaunchRequest:
        """Return what the ranks of one launch of a case are asked to do."""
        return LaunchRequest(
            case=case,
            purpose=purpose,
            round=round_number,
            measured_s=self.budget.measured_s,
            target_loss=self.budget.target_loss,
        )

    @property
    def runnable(self) -> tuple[PlannedCase, ...]:
        """The cases that are not skipped."""
        return tuple(entry for entry in self.cases if entry.skip_reason is None)


def planned_json(entry: PlannedCase) -> dict[str, Any]:
    """Return a case as `plan.json` holds it."""
    merged = {"stands_for": list(entry.stands_for), "caps_worth": list(entry.caps_worth)}
    return {
        **entry.case.to_json(),
        "skip_reason": entry.skip_reason,
        "added_as_baseline": entry.added_as_baseline,
        "oversubscribed": entry.oversubscribed,
        **(merged if entry.stands_for else {}),
    }


def launches_json(order: Iterable[tuple[int, str]]) -> list[dict[str, Any]]:
    """Return the order of launches as `plan.json` holds it."""
    return [{"round": number, "case_id": case_id} for number, case_id in order]


def read_plan(run: RunDir) -> StoredPlan:
    """Read the plan of a run, and unpack its records where they were kept as an archive.

    Whoever goes on to read a launch has read the plan first, which names the launches.

    Raises:
        IdentityError: it is missing, damaged, or of another schema.
        RecordError: the archive is damaged, or holds anything but records.
        OutputError: the archive cannot be unpacked here.
    """
    data = run.read_json(run.plan)
    unpack(run)
    try:
        entries: list[dict[str, Any]] = data["cases"]
        cases = tuple(
            PlannedCase(
                case=Case.from_json(entry),
                skip_reason=entry["skip_reason"],
                added_as_baseline=entry["added_as_baseline"],
                oversubscribed=entry["oversubscribed"],
                stands_for=tuple(entry.get("stands_for", ())),
                caps_worth=tuple(entry.get("caps_worth", ())),
            )
            for entry in entries
        )
        return StoredPlan(
            experiment=data["experiment"],
            question=data["question"],
            budget=Budget.model_validate(data["budget"]),
            cases=cases,
            ids=tuple(entry["case_id"] for entry in entries),
            order=tuple((item["round"], item["case_id"]) for item in data.get("launches", [])),
        )
    except KeyError as error:
        raise IdentityError(f"{run.plan} is damaged: {error} is missing") from None
    except (TypeError, ValidationError) as error:
        raise IdentityError(f"{run.plan} is damaged: {error}") from None
