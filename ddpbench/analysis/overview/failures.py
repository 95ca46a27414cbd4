"""Failures of a run: launches, proofs, and cases that were skipped or have too few rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpbench.analysis.read.launches import CaseRun, Launch, ProofRun
from ddpbench.analysis.summary import CaseFailure
from ddpbench.naming import Namer


def failures_of(cases: Sequence[CaseRun]) -> Iterable[CaseFailure]:
    """Yield a failure for each launch and proof that is not ok, and for each case that failed otherwise."""
    names = Namer(case.case for case in cases)
    for case in cases:
        label = names.full(case.case)
        proof = case.proof
        bad = [launch for launch in case.launches if not launch.ok]
        if proof is not None and proof.status != "ok":
            yield _of_proof(case, proof, label)
        elif case.status != "ok" and not bad:
            yield _of_case(case, label)
        for launch in bad:
            yield _of_launch(launch, label)


def _of_proof(case: CaseRun, proof: ProofRun, label: str) -> CaseFailure:
    return CaseFailure(
        case_id=case.case_id,
        label=label,
        round=None,
        status=proof.status,
        phase=proof.phase or "proof",
        reason=case.error,
        last_log_line=proof.last_log_line,
    )


def _of_case(case: CaseRun, label: str) -> CaseFailure:
    return CaseFailure(
        case_id=case.case_id,
        label=label,
        round=None,
        status=case.status,
        phase="",
        reason=case.error,
        last_log_line="",
    )


def _of_launch(launch: Launch, label: str) -> CaseFailure:
    return CaseFailure(
        case_id=launch.case_id,
        label=label,
        round=launch.round,
        status=launch.status,
        phase=launch.phase,
        reason=launch.error,
        last_log_line=launch.last_log_line,
    )
