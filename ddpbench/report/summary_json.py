"""Convert a run's summary to JSON, which is embedded in the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddpbench.analysis.checkpoints import CheckpointCost
from ddpbench.analysis.results import (
    Compared,
    EfficiencyLoss,
    InputResult,
    LaunchResult,
    LossPoint,
    NetworkResult,
    Proved,
    RankTimes,
    StepParts,
    StrategyPhase,
    TrainedToLoss,
    TransferResult,
    columns_of,
)
from ddpbench.analysis.scaling.curves import CurveLaws
from ddpbench.analysis.sentences import headline
from ddpbench.analysis.summary import CaseFailure, DecidedClaim, RunSummary
from ddpbench.naming import Namer


def embedded_json(summary: RunSummary) -> str:
    """Return the complete summary as JSON text, which includes numbers for which the page lacks room."""
    about, course, said = summary.about, summary.course, summary.conclusions
    names = Namer(summary.planned.values())
    steps, sent, training = summary.steps, summary.communication, summary.training
    results = {
        "launches": columns_of(LaunchResult, steps.launches),
        "breakdown": columns_of(StepParts, steps.breakdown),
        "step_times_by_rank": columns_of(RankTimes, steps.by_rank),
        "phases": columns_of(StrategyPhase, steps.phases),
        "proofs": columns_of(Proved, training.proofs),
        "comparisons": columns_of(Compared, steps.comparisons),
        "inputs": columns_of(InputResult, summary.inputs),
        "checkpoints": columns_of(CheckpointCost, summary.checkpoints),
        "waterfall": columns_of(EfficiencyLoss, steps.waterfall),
        "transfers": columns_of(TransferResult, sent.transfers),
        "network": columns_of(NetworkResult, sent.network),
        "loss_curves": columns_of(LossPoint, training.loss_curves),
        "time_to_loss": columns_of(TrainedToLoss, training.time_to_loss),
    }
    data = {
        "name": about.name,
        "question": about.question,
        "counts": {name: getattr(course.counts, name) for name in _COUNTS},
        "stop_reason": course.stop_reason,
        "answer": [one.line for one in said.answer],
        "findings": [
            {
                "text": item.text,
                "tags": item.tags,
                "evidence": item.evidence,
                "verdict": item.verdict,
                "kind": item.kind,
                "cases": item.cases,
                "ratio": None if item.ratio is None else asdict(item.ratio),
                **({"ratios": [asdict(one) for one in item.ratios]} if item.ratios else {}),
            }
            for item in said.findings
        ],
        **({"claims": [_claim(one) for one in said.claims]} if said.claims else {}),
        "validity": list(said.validity),
        "checks": {
            "outcome": said.checks.outcome,
            "rules": [asdict(rule) | {"statement": headline(rule.statement)} for rule in said.checks.rules],
            "violations": [violation.to_json() for violation in said.checks.violations],
        },
        "fabrics": [asdict(one) for one in sent.fabrics],
        "failures": [_failure(item, names.key(summary.planned[item.case_id])) for item in course.failures],
        "machine": about.machine,
        "experiment_toml": about.experiment_toml,
        "laws": [_curve(curve) for curve in steps.laws],
        "one_step": asdict(steps.one_step) if steps.one_step is not None else None,
        **results,
    }
    whole = _plain(data) | {"cases": json.loads(_json(summary.cases))}
    return json.dumps(whole, default=str, separators=(",", ":"), allow_nan=False)


def _curve(curve: CurveLaws) -> dict[str, Any]:
    own = {
        field.name: getattr(curve, field.name) for field in fields(curve) if field.name not in ("case", "key")
    }
    return own | {
        "name": curve.key,
        "strategy": curve.case.strategy,
        "algorithm": curve.case.algorithm,
    }


def _claim(claim: DecidedClaim) -> dict[str, Any]:
    pairs = [
        {name: value for name, value in asdict(pair).items() if name != "briefly"} for pair in claim.pairs
    ]
    return asdict(claim) | {"pairs": pairs}


def _failure(item: CaseFailure, label: str) -> dict[str, Any]:
    return {name: getattr(item, name) for name in _FAILURE} | {"label": label}


def _plain(value: Any) -> Any:
    """Convert a value for JSON: numpy's numbers become Python's, and NaN and infinity None."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


_COUNTS = ("planned", "succeeded", "failed", "skipped_cases", "cases", "rounds")
_FAILURE = ("case_id", "label", "round", "status", "phase", "reason", "last_log_line")


def _json(frame: pd.DataFrame) -> str:
    text: str = frame.to_json(orient="split", index=False, double_precision=15)
    return text
