"""Rows of the report's tables: launches, parts of a step, spans, proofs, inputs and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from ddpbench.analysis.checkpoints import CheckpointCost, checkpoint_costs
from ddpbench.analysis.inputs import input_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.overlap import PARTS, STANDARD_SPANS
from ddpbench.analysis.results import ByPart, InputResult, LaunchResult, Proved, StepParts, StrategyPhase


def launch_results(cases: Sequence[CaseRun]) -> Iterator[LaunchResult]:
    """Yield the result of every launch, ordered by case and round."""
    for launch in (launch for case in cases for launch in case.launches):
        timing = launch.timing
        yield LaunchResult(
            case_id=launch.case_id,
            round=launch.round,
            status=launch.status,
            step_time_s=timing.step_s if timing is not None else None,
            samples_per_s=1 / timing.sample_s if timing is not None else None,
            wall_s=launch.wall_s,
            measured_s=launch.measured_s,
            server_s=launch.server_s,
            steal_fraction=launch.noise.steal_fraction,
            foreign_fraction=launch.noise.foreign_fraction,
            steady=launch.steady,
            noise_flag="; ".join(launch.flags),
            session=launch.session,
        )


def step_parts(cases: Sequence[CaseRun]) -> Iterator[StepParts]:
    """Yield the parts of the step of each instrumented case, as medians over launches."""
    for case in cases:
        if (parts := case.parts) is None:
            continue
        found = {name: replace(parts.interval(name), value=parts.parts[name]) for name in PARTS}
        logs = case.instrumented_over_timed
        yield StepParts(
            case_id=case.case_id,
            parts=ByPart(**found),
            overlapped_comm=replace(parts.interval("overlapped"), value=parts.overlapped_s),
            step_time_s=parts.step_s,
            launches=parts.launches,
            instrumentation_overhead=math.expm1(fmean(logs)) if logs else None,
        )


def phases_of(cases: Sequence[CaseRun]) -> Iterator[StrategyPhase]:
    """Yield all spans of each case that records more than the standard spans, such as `data_parallel`."""
    for case in cases:
        if case.parts is not None and not STANDARD_SPANS.issuperset(case.parts.spans):
            for order, (span, median_s) in enumerate(case.parts.spans.items()):
                mean_s = case.parts.mean_spans[span]
                yield StrategyPhase(
                    case_id=case.case_id, span=span, mean_s=mean_s, order=order, median_s=median_s
                )


def proofs_of(cases: Sequence[CaseRun]) -> Iterator[Proved]:
    """Yield the comparisons that each case's proof made, with the differences that were found."""
    for case in cases:
        for one in case.proof.proofs if case.proof is not None else ():
            yield Proved(
                case_id=case.case_id,
                compared=one.compared,
                dtype=one.dtype,
                error=one.error,
                tolerance=one.tolerance,
                passed=one.passed,
                note=one.note,
            )


def input_results(cases: Sequence[CaseRun]) -> Iterator[InputResult]:
    """Yield the cases of all input groups, group by group.

    Cases of a group differ only in where their data come from.
    """
    for number, group in enumerate(input_groups(cases)):
        for member in group.members:
            yield InputResult(
                group=number,
                case_id=member.run.case_id,
                data=member.run.case.data,
                loader_workers=member.run.case.loader_workers,
                waited_s=member.waited_s,
                waited_share=member.waited_share,
                ratio=member.ratio,
                verdict=member.verdict,
            )


def costs_of_checkpoints(cases: Sequence[CaseRun]) -> Iterator[CheckpointCost]:
    """Yield the cost of each case's checkpoints, for each method."""
    for case in cases:
        if case.timings:
            launches = [launch.checkpoints for launch in case.good]
            yield from checkpoint_costs(case.case_id, launches, case.timings)
