"""Data classes with the results of an entire run, for the report and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pandas as pd

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.invariants.checked import Checked
from ddpbench.analysis.statistics.interval import Interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpbench.analysis.case_summary import CaseSummary
    from ddpbench.analysis.checkpoints import CheckpointCost
    from ddpbench.analysis.read.fabrics import FabricRun
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
    )
    from ddpbench.analysis.scaling.curves import CurveLaws
    from ddpbench.analysis.steps.one_step import OneStep
    from ddpbench.spec import Case
    from ddpbench.spec.claims import ClaimKind, Of, Past, YesOrNo


PairVerdict = Literal["holds", "does not hold", "cannot tell"]
ClaimVerdict = Literal["holds", "does not hold", "holds in part", "cannot tell"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldPair:
    """Two cases that a claim compares, and the verdict on them."""

    a: str
    """Id of the case that the claim is about."""
    b: str
    """Id of the case that A is compared with."""
    a_name: str
    b_name: str
    place: str
    """Words that distinguish this pair from the claim's other pairs."""
    verdict: PairVerdict
    reason: str = ""
    """Reason why the two were not compared; empty if they were."""
    briefly: str = ""
    """`reason` without details."""
    ratio: Interval | None = None
    """A's time divided by B's, per sample or per step; the intervals of all claims hold at once."""
    rounds: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DecidedClaim:
    """A claim of the experiment, and the run's verdict on it (`findings/claims.py`)."""

    says: str
    source: str
    answers: YesOrNo | None = None
    """Answer to the experiment's question if the claim holds."""
    answered_later: bool = False
    """True if `answers` was added to the experiment after the run."""
    kind: ClaimKind
    margin: float
    """Difference that the claim requires (kind `faster`) or allows (kind `as fast`), as a fraction."""
    of: Of
    verdict: ClaimVerdict
    pairs: tuple[HeldPair, ...]
    comparisons: int
    """Number of compared pairs of all claims, for which the intervals are corrected."""
    number: int | None = None
    history: tuple[Past, ...] = ()
    """Earlier wordings of the claim and verdicts of earlier runs, oldest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseFailure:
    """A case or launch that failed, or a case that was skipped, with the reason."""

    case_id: str
    label: str
    round: int | None
    status: str
    phase: str
    reason: str
    last_log_line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Numbers of launches, cases and rounds of a run, so that all texts report equal numbers."""

    planned: int
    succeeded: int
    failed: int
    skipped_cases: int
    cases: int
    rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts about the run: its experiment, its location and its machine."""

    name: str
    question: str = ""
    scope: str = ""
    """Reason for the choice of cases, as the experiment words it, or the experiments of all merged runs."""
    machine: dict[str, object]
    """`machine.json`: `identity` and `context`."""
    experiment_toml: str
    run_path: str
    merged_from: tuple[str, ...] = ()
    """Run directories from which this one was merged; empty for a run of a sweep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """Course of the run: launches made, failures, duration, and why the run ended."""

    counts: Counts
    failures: tuple[CaseFailure, ...] = ()
    stop_reason: str
    """Why no more rounds were run: `target reached`, `rounds_max`, `budget`, `interrupted`."""
    wall_s: float
    measured_share: float | None
    """Share of the sweeps' wall time spent in warm-up and measured steps."""
    position_spread: float | None = None
    """Largest difference of cases' mean positions in a round, as a share of a round (`analysis/read/positions.py`)."""
    alternation: str = ""
    """Sentences on which launches of a round alternated by blocks; empty if none did."""
    alone: str = ""
    """Sentence on the cases that ran alone while others alternated; empty if there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclusions:
    """Findings of the run in sentences, and the limits of its numbers."""

    findings: tuple[Finding, ...] = ()
    answer: tuple[Finding, ...] = ()
    """Answer to the experiment's question in one or two findings (`findings/answer.py`)."""
    claims: tuple[DecidedClaim, ...] = ()
    """Verdicts on the experiment's claims, in its order."""
    warnings: tuple[str, ...] = ()
    """Warnings to read before any number: most launches disturbed, a bound exceeded (`overview/warnings.py`)."""
    validity: tuple[str, ...] = ()
    """Sentences on what limits the numbers: oversubscribed, noisy, too few rounds, not steady, damaged."""
    left_out: tuple[str, ...] = ()
    """Sentences of `validity` about records that do not belong where they are."""
    checks: Checked = field(default_factory=Checked)
    """Results of the report's self-checks (`analysis/invariants`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResults:
    """Step times as measured, as compared between cases, and as divided into parts."""

    launches: tuple[LaunchResult, ...] = ()
    comparisons: tuple[Compared, ...] = ()
    breakdown: tuple[StepParts, ...] = ()
    by_rank: tuple[RankTimes, ...] = ()
    phases: tuple[StrategyPhase, ...] = ()
    waterfall: tuple[EfficiencyLoss, ...] = ()
    laws: tuple[CurveLaws, ...] = ()
    """Scaling laws fitted to each curve: one strategy over world sizes (`analysis/scaling/curves.py`)."""
    one_step: OneStep | None = None
    one_step_absent: str = ""
    """Reason why no step is drawn; empty if a step is drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """Transfers between ranks and nodes, and the emulated networks that carried them."""

    transfers: tuple[TransferResult, ...] = ()
    network: tuple[NetworkResult, ...] = ()
    fabrics: tuple[FabricRun, ...] = ()
    """The emulated networks as made and proved; empty if the run did not record them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResults:
    """Results on the training itself: comparisons with one process, and the loss over time."""

    proofs: tuple[Proved, ...] = ()
    loss_curves: tuple[LossPoint, ...] = ()
    time_to_loss: tuple[TrainedToLoss, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """Results of a run directory's analysis, by section of the report.

    `cases` is a frame with one row per case and exactly the columns `columns.COLUMNS`.
    """

    about: RunFacts
    course: Course
    conclusions: Conclusions = field(default_factory=Conclusions)
    cases: pd.DataFrame
    by_case: tuple[CaseSummary, ...] = ()
    """Rows of `cases` as values, in the order of `cases`."""
    planned: Mapping[str, Case]
    """Every case of `cases` as planned, by its id."""
    steps: StepResults = field(default_factory=StepResults)
    communication: Communication = field(default_factory=Communication)
    training: TrainingResults = field(default_factory=TrainingResults)
    inputs: tuple[InputResult, ...] = ()
    """Waiting times for data, compared within groups of cases that differ only in where batches come from."""
    checkpoints: tuple[CheckpointCost, ...] = ()
