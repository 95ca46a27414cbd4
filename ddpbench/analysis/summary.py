"""What analysis hands to the report and to the command line: a run, whole, as values. It draws nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pandas as pd

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.invariants.checked import Checked
from ddpbench.analysis.statistics.stats import Interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpbench.analysis.read.fabrics import FabricRun
    from ddpbench.analysis.scaling.curves import CurveLaws
    from ddpbench.analysis.steps.one_step import OneStep
    from ddpbench.spec import Case
    from ddpbench.spec.claims import Kind, Of, Past


PairVerdict = Literal["holds", "does not hold", "cannot tell"]
ClaimVerdict = Literal["holds", "does not hold", "holds in part", "cannot tell"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldPair:
    """Two cases of a claim held against each other."""

    a: str
    """Id of the case that the claim is about."""
    b: str
    """Id of the case that it is held against."""
    a_name: str
    b_name: str
    place: str
    """What tells this pair from the claim's others, in words."""
    verdict: PairVerdict
    reason: str = ""
    """Why the two were not compared; empty where they were."""
    ratio: Interval | None = None
    """A's time over B's, of a sample or of a step; all intervals of all claims hold at once."""
    rounds: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """A claim of the experiment, and what the run says of it (`findings/claims.py`)."""

    says: str
    source: str
    kind: Kind
    margin: float
    """Of `faster` how much at least, of `as fast` how much at most, as a fraction."""
    of: Of
    verdict: ClaimVerdict
    pairs: tuple[HeldPair, ...]
    comparisons: int
    """Pairs of all claims that were compared, for whose number the intervals are corrected."""
    number: int | None = None
    history: tuple[Past, ...] = ()
    """Earlier wordings and runs, oldest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A case or launch that is not ok, or was skipped."""

    case_id: str
    label: str
    round: int | None
    status: str
    phase: str
    reason: str
    last_log_line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Launches, computed once for every place that tells them."""

    planned: int
    succeeded: int
    failed: int
    skipped_cases: int
    cases: int
    rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """A run directory, understood.

    Frames:
        cases: one row per case, exactly `columns.COLUMNS`.
        launches: one row a measuring launch: `case_id, round, status, step_time_s, samples_per_s, wall_s,
            measured_s, server_s, steal_fraction, foreign_fraction, steady, noise_flag, session`.
        breakdown: one row per case that has instrumented steps; means over ranks and instrumented steps, median
            over launches, seconds; only in each launch do they add up to `step_time_s`: `case_id, forward,
            backward, optimizer, other_compute, exposed_comm, exposed_wait, data, not_attributed,
            step_time_s, overlapped_comm, launches, instrumentation_overhead` (the last: instrumented over
            timed step time, minus 1), and `_ci_low` and `_ci_high` of each part and of `overlapped_comm`.
        phases: data_parallel's own phases and any other span names: `case_id, span, mean_s, order,
            median_s`; means over ranks and steps, and over launches their mean and their median.
        proofs: `case_id, compared, dtype, error, tolerance, passed, note`.
        comparisons: one row per case held against the best of the others of its group, paired by round: `topic`
            (`buckets`, `layouts`, `strategies`, `ranks`), `case_id, best_case_id` (the fastest other), `ratio,
            ratio_ci_low, ratio_ci_high` (step time over the best other's, bounds that hold for the group), `verdict`
            (`best`, `as good`, `slower`, `cannot tell`, `too few`: `analysis/statistics/best.py`). It may be empty.
            Topics `precision` and `data` have a `Finding`'s verdict.
            Of topic `precision` the other case is the one in full precision, whichever is faster.
            Of topic `data` the other case is the one with its batches in memory, whichever is faster.
        inputs: one row a measured case: `group` (a number; its members differ only in where batches come
            from), `case_id, data, loader_workers, waited_s, waited_share` (of an instrumented step), `ratio,
            ratio_ci_low, ratio_ci_high` (step time over that from memory), `verdict` (`analysis/inputs.py`).
        checkpoints: one row per case and method: `case_id, method, cost_s, cost_ci_low_s, cost_ci_high_s,
            first_s, write_s, bytes, writers, checkpoints, launches, step_time_s, share_100, share_1000,
            share_10000` (of time, at one checkpoint in that many steps), `steps_for_1_percent`, `cost_mean_s,
            step_time_mean_s` (means over launches, which shares are of; the others are medians).
        waterfall: one row for each loss of a case and one for its efficiency: `case_id, item` (one of
            `waterfall.LOSSES`, or `efficiency`), `share, share_ci_low, share_ci_high, rounds, split` (whether
            contention is told apart), `outrun` (whether independent ranks were slower than the case). A case's
            losses and its efficiency add up to 1.
        transfers: one row for each operation, number of ranks and size: `group, case_id, op, world_size,
            bytes, time_s, time_ci_low_s, time_ci_high_s, busbw` (bytes/s), `busbw_ci_low, busbw_ci_high,
            call_time_s, call_busbw` (by nccl-tests' clock, with ends too), `factor, rounds, transfers,
            latency_s, latency_ci_low_s, latency_ci_high_s, byte_s, misfit, latency_share`
            (the line through an operation's sizes: `communication.Line`).
        network: one row per case whose transfers went over emulated links, as `analysis/network.py` works it out:
            `case_id, network_s, network_ci_low_s, network_ci_high_s, rounds, formula, formula_s, bound_s,
            gradient_bytes, sent_bytes, formula_bytes`.
        loss_curves: points of the trainings to a loss: `time_to_loss.LOSS_CURVE_COLUMNS`.
        time_to_loss: one row per case that was trained to one: `time_to_loss.TIME_TO_LOSS_COLUMNS`.
    """

    name: str
    question: str
    machine: dict[str, object]
    """`machine.json`: `identity` and `context`."""
    experiment_toml: str
    run_path: str
    counts: Counts
    cases: pd.DataFrame
    launches: pd.DataFrame
    breakdown: pd.DataFrame
    phases: pd.DataFrame
    proofs: pd.DataFrame
    findings: tuple[Finding, ...]
    answer: tuple[Finding, ...] = ()
    """One or two lines that answer the experiment's question, from what was decided (`findings/answer.py`)."""
    warnings: tuple[str, ...] = ()
    """What a reader must know before any number: most launches disturbed, a bound exceeded (`overview/warnings.py`)."""
    validity: tuple[str, ...]
    """Sentences on what limits the numbers: oversubscribed, noisy, too few rounds, not steady, damaged."""
    left_out: tuple[str, ...] = ()
    """Those of them that tell of records which do not belong where they lie."""
    failures: tuple[Failure, ...]
    planned: Mapping[str, Case]
    """Every case of `cases` as it was planned, by its id."""
    stop_reason: str
    """Why no more rounds were run: `target reached`, `rounds_max`, `budget`, `interrupted`."""
    measured_share: float | None
    """Share of the sweep's wall time spent in warm-up and measured steps."""
    wall_s: float
    comparisons: pd.DataFrame = field(default_factory=pd.DataFrame)
    inputs: pd.DataFrame = field(default_factory=pd.DataFrame)
    checkpoints: pd.DataFrame = field(default_factory=pd.DataFrame)
    waterfall: pd.DataFrame = field(default_factory=pd.DataFrame)
    transfers: pd.DataFrame = field(default_factory=pd.DataFrame)
    network: pd.DataFrame = field(default_factory=pd.DataFrame)
    loss_curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    time_to_loss: pd.DataFrame = field(default_factory=pd.DataFrame)
    fabrics: tuple[FabricRun, ...] = ()
    """The emulated networks as they were made and proved, where the run tells."""
    one_step: OneStep | None = None
    one_step_absent: str = ""
    """Why there is no step to look at, where there is none."""
    checks: Checked = field(default_factory=Checked)
    """What the report found when it checked itself (`analysis/invariants`)."""
    merged_from: tuple[str, ...] = ()
    """The run directories this one was merged from; empty where a sweep made it."""
    laws: tuple[CurveLaws, ...] = ()
    """What scaling laws make of each curve: one strategy over world sizes (`analysis/scaling/curves.py`)."""
    claims: tuple[Decided, ...] = ()
    """What the experiment was to decide, in its order."""
    scope: str = ""
    """Why the experiment has just these cases, in its words; those of all runs that it was merged from."""
    position_spread: float | None = None
    """How far the cases' mean positions within a round are apart, as a share of it (`analysis/read/positions.py`)."""
