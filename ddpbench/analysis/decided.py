"""A run whose claims were decided: for pairs that claims name, its results use the claims' intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddpbench.analysis.findings.claims import decided_claims, judged_by_claims
from ddpbench.analysis.invariants import check_cases
from ddpbench.analysis.invariants.checked import Checked
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.fabrics import FabricRun, fabrics_of
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.summary import DecidedClaim
from ddpbench.analysis.table.frame import case_table, table_of
from ddpbench.analysis.table.result import CaseResult, case_results
from ddpbench.records import RunDir
from ddpbench.records.machine import read_machine
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.spec.claims import PlannedClaim


@dataclass(frozen=True, kw_only=True, slots=True)
class DecidedRun:
    """A run with decided claims: its cases, their results, each claim's outcome, and the checks."""

    cases: list[CaseRun]
    results: list[CaseResult]
    table: pd.DataFrame
    """Table of the results."""
    claims: tuple[DecidedClaim, ...]
    checks: Checked


def decide(
    plan: StoredPlan,
    cases: list[CaseRun],
    machine: Mapping[str, Any],
    fabrics: Sequence[FabricRun],
    claims: Sequence[PlannedClaim],
) -> DecidedRun:
    """Decide a run's claims, and return its cases, results, table and checks.

    In the returned cases and table, a pair of cases that a claim names has the claim's judgement.
    """
    targets = plan.target_half_widths()
    results = case_results(cases, targets, machine)
    checks = check_cases(results, fabrics)
    decided = decided_claims(claims, cases, checks.withheld)
    if decided:
        cases = judged_by_claims(cases, decided)
        results = case_results(cases, targets, machine)
    return DecidedRun(cases=cases, results=results, table=table_of(results), claims=decided, checks=checks)


def load(run: RunDir | Path | str) -> pd.DataFrame:
    """Compute the table of a run directory from its records: one row per case, in the plan's order.

    Raises:
        IdentityError: `run` is not a run directory, or has another schema.
    """
    found = run if isinstance(run, RunDir) else RunDir(Path(run))
    plan = read_plan(found)
    machine = read_machine(found) if found.machine.exists() else {}
    cases = read_cases(found, plan)
    if not plan.claims:
        return case_table(plan, cases, machine)
    return decide(plan, cases, machine, fabrics_of(found), plan.claims).table
