"""Find the histories of a run's claims in the experiments that ship with ddpbench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ddpbench.shipped import shipped_experiments
from ddpbench.spec.claims import Earlier, JudgedAgain, Past, PlannedClaim, past
from ddpbench.spec.documents import parse, read_text


class _Claim(BaseModel):
    history: list[Earlier] = []


class _Experiment(BaseModel):
    claims: list[_Claim] = []


def with_known_history(
    claims: Sequence[PlannedClaim], experiment: str, run_id: str, folder: Path | None = None
) -> tuple[PlannedClaim, ...]:
    """Return a run's claims. If its plan lacks their histories, take these from the shipped experiment of this name.

    A history belongs to a claim if one of its entries has the run's id and the claim's wording. This entry becomes a
    `JudgedAgain`; it has the verdict that the run had when the history was written. Later entries are left out.
    """
    if not run_id or not claims or any(claim.number is not None or claim.history for claim in claims):
        return tuple(claims)
    known = _histories((folder or shipped_experiments()) / f"{experiment}.toml")
    return tuple(_with_own(claim, run_id, known) for claim in claims)


def _with_own(claim: PlannedClaim, run_id: str, known: Sequence[Sequence[Past]]) -> PlannedClaim:
    for history in known:
        for place, entry in enumerate(history):
            if entry.run == run_id and entry.says == claim.says:
                own = JudgedAgain(**asdict(entry))
                return replace(claim, number=entry.number, history=(*history[:place], own))
    return claim


def _histories(file: Path) -> list[tuple[Past, ...]]:
    """Return the history of each claim in an experiment's file; empty if the file is missing or cannot be read."""
    try:
        document = _Experiment.model_validate(parse(read_text(file)))
    except (OSError, ValueError, ValidationError):
        return []
    return [past(claim.history) for claim in document.claims]
