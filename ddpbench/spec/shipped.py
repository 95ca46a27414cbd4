"""Complete the claims of a run's plan from the experiment of the same name that ships with ddpbench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ddpbench.shipped import shipped_experiments
from ddpbench.spec.claims import AnsweredLater, Earlier, JudgedAgain, Past, PlannedClaim, YesOrNo, past
from ddpbench.spec.documents import parse, read_text


class _Claim(BaseModel):
    says: str = ""
    answers: YesOrNo | None = None
    history: list[Earlier] = []


class _Experiment(BaseModel):
    question: str = ""
    claims: list[_Claim] = []


def with_known_history(
    claims: Sequence[PlannedClaim], experiment: str, run_id: str, folder: Path | None = None
) -> tuple[PlannedClaim, ...]:
    """Return a run's claims with their histories.

    Missing histories come from the shipped experiment of the same name, if an entry has the run's id and the claim's
    wording. That entry becomes a `JudgedAgain`, and later ones are left out.
    """
    if not run_id or not claims or any(claim.number is not None or claim.history for claim in claims):
        return tuple(claims)
    known = [past(claim.history) for claim in _shipped(experiment, folder).claims]
    return tuple(_with_own(claim, run_id, known) for claim in claims)


def with_known_answers(
    claims: Sequence[PlannedClaim], experiment: str, question: str, folder: Path | None = None
) -> tuple[PlannedClaim, ...]:
    """Return a run's claims with their answers to the experiment's question.

    Without own answers, claims get those of the shipped experiment of the same name and `question`, matched by wording.
    Such a claim is an `AnsweredLater`.
    """
    if not claims or any(claim.answers is not None for claim in claims):
        return tuple(claims)
    shipped = _shipped(experiment, folder)
    if shipped.question != question:
        return tuple(claims)
    known = {claim.says: claim.answers for claim in shipped.claims}
    return tuple(_answered(claim, known.get(claim.says)) for claim in claims)


def _answered(claim: PlannedClaim, answers: YesOrNo | None) -> PlannedClaim:
    stored = {one.name: getattr(claim, one.name) for one in fields(claim)}
    return claim if answers is None else AnsweredLater(**{**stored, "answers": answers})


def _with_own(claim: PlannedClaim, run_id: str, known: Sequence[Sequence[Past]]) -> PlannedClaim:
    for history in known:
        for place, entry in enumerate(history):
            if entry.run == run_id and entry.says == claim.says:
                own = JudgedAgain(**asdict(entry))
                return replace(claim, number=entry.number, history=(*history[:place], own))
    return claim


def _shipped(experiment: str, folder: Path | None) -> _Experiment:
    file = (folder or shipped_experiments()) / f"{experiment}.toml"
    try:
        return _Experiment.model_validate(parse(read_text(file)))
    except (OSError, ValueError, ValidationError):
        return _Experiment()
