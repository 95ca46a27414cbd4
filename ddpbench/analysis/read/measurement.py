"""Read one measuring launch, and convert its records into the times of the undilated, unshrunk job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.checkpoints import checkpoint_runs
from ddpbench.analysis.read.alternation import anchor_corrections, busy_while_waiting
from ddpbench.analysis.read.faults import faults_per_step
from ddpbench.analysis.read.launches import NOT_STEADY, Launch
from ddpbench.analysis.read.loss_curves import loss_curve_of
from ddpbench.analysis.read.pace import LATE_SHARE, cpu_share, pacing
from ddpbench.analysis.read.parts import RankSteps
from ddpbench.analysis.read.staleness import added
from ddpbench.analysis.read.steptime import BlockTimes, time_blocks
from ddpbench.analysis.read.traffic import link_traffic
from ddpbench.analysis.read.virtual import nominal
from ddpbench.analysis.recovery import RankRecovery, recovered_of
from ddpbench.analysis.startup import start_up_of
from ddpbench.analysis.statistics.steady import NOT_READY, launch_change
from ddpbench.records import (
    Address,
    Block,
    Buckets,
    Checkpoint,
    CommRecord,
    Failure,
    Gang,
    Held,
    LaunchDir,
    LaunchOutcome,
    LeftOut,
    LossCurve,
    Met,
    Noise,
    Pace,
    RankOutcome,
    RankRecords,
    RankStart,
    Record,
    Snapshot,
    Staleness,
    StepRecord,
    Traffic,
    Trained,
    Warmup,
    read_launch,
)
from ddpbench.records.sessions import UNKNOWN, Sessions
from ddpbench.spec import Case

STEAL_LIMIT = 0.01
"""Share of the usable cores' time taken by other virtual machines above which a launch is flagged."""
FOREIGN_LIMIT = 0.05
"""Share of the usable cores' time used by processes outside the sweep above which a launch is flagged."""
CLOCK_LIMIT = 0.05
"""Relative change of a core's clock during a launch above which the launch is flagged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchMeasurement:
    """The measuring launch in a folder, with its instrumented steps.

    `launch` is None if it is unfinished, or if the files are another launch's.
    """

    launch: Launch | None = None
    steps: dict[int, RankSteps] = field(default_factory=dict)
    """Instrumented steps by rank."""
    left_out: tuple[LeftOut, ...] = ()


def read_measurement(
    directory: LaunchDir, address: Address, sessions: Sessions = UNKNOWN
) -> LaunchMeasurement:
    """Return the measuring launch in a folder, and its instrumented steps by rank.

    Unreadable records give the status `failed`. A launch that is not ok has no steps. `sessions` assigns a session if
    the outcome names none.
    """
    case = address.case
    records = read_launch(directory, address)
    if not records.finished:
        return LaunchMeasurement(left_out=records.left_out)
    foreign = tuple(f"{one.path}: {one.why}" for one in records.left_out)
    outcome = records.outcome
    if outcome is None:
        launch = Launch(
            case_id=address.case_id,
            round=address.round,
            status="failed",
            damage=records.damage,
            error=damage_sentence(records.damage),
        )
        return LaunchMeasurement(launch=launch, left_out=records.left_out)
    ranks = {rank.rank: _Sorted(rank) for rank in nominal(records.ranks, case)}
    launch = _without_times(address, outcome, ranks, sessions, records.damage)
    if launch.status == "ok":
        launch = _with_times(launch, ranks, case, foreign)
    elif case.recovery != "off":  # a planned failure from which it did not recover
        recoveries = [_recovery(rank) for rank in ranks.values()]
        launch = replace(launch, recovered=recovered_of(launch.round, recoveries, case))
    launch = _with_flags(launch, ranks)
    steps = _instrumented(ranks) if launch.status == "ok" else {}
    return LaunchMeasurement(launch=launch, steps=steps, left_out=records.left_out)


def _without_times(
    address: Address,
    outcome: LaunchOutcome,
    ranks: Mapping[int, _Sorted],
    sessions: Sessions,
    damage: tuple[str, ...],
) -> Launch:
    start = next(iter(_starts(ranks)), None)
    buckets = next((record for rank in ranks.values() for record in reversed(rank.of(Buckets))), None)
    ends = [end for rank in ranks.values() for end in rank.of(RankOutcome)[-1:]]
    peaks = [end.peak_memory_bytes for end in ends if end.peak_memory_bytes is not None]
    held = [
        (each.parameter_bytes, each.gradient_bytes, each.optimizer_bytes)
        for rank in ranks.values()
        for each in rank.of(Held)
    ]
    checksums = [end.params_checksum for end in ends if end.params_checksum]
    return Launch(
        case_id=address.case_id,
        round=address.round,
        status=outcome.status,
        damage=damage,
        error=outcome.error,
        phase=outcome.phase,
        last_log_line=outcome.last_log_line,
        wall_s=outcome.wall_s,
        measured_s=outcome.measured_s,
        server_s=outcome.server_s,
        noise=outcome.noise,
        alternated=outcome.alternated,
        processes=max(len(outcome.exit_codes), len(ranks)),
        session=sessions.session_of(outcome.session, outcome.started_utc),
        parameters=start.parameters if start is not None else None,
        gradient_bytes=start.gradient_bytes if start is not None else None,
        largest_gradient_bytes=start.largest_gradient_bytes if start is not None else None,
        types=start.types if start is not None else (),
        found=_found(ranks),
        changes=tuple(dict.fromkeys(sentence for end in ends for sentence in end.changes)),
        own_step=start is not None and start.own_step,
        bucket_bytes=buckets.bytes if buckets is not None else None,
        peak_memory_bytes=max(peaks, default=None),
        held_bytes=max(held, key=sum, default=None),
        params_equal=len(set(checksums)) == 1 if len(checksums) > 1 else None,
        start_up=start_up_of([_beginning(rank) for rank in ranks.values()]),
        staleness=added(record.counts for rank in ranks.values() for record in rank.of(Staleness)),
        shares_cores=_loaders_share_cores(address.case, _starts(ranks)),
        hosts=len(set(_hosts(ranks).values())),
        slow_interfaces=_slow_interfaces(_starts(ranks)),
        traffic=link_traffic({number: rank.of(Traffic) for number, rank in ranks.items()}),
    )


def _found(ranks: Mapping[int, _Sorted]) -> dict[str, tuple[int | str, ...]]:
    starts = [start for rank in ranks.values() for start in rank.of(RankStart)]
    ends = [end for rank in ranks.values() for end in rank.of(RankOutcome)]
    found: dict[str, tuple[int | str, ...]] = {
        "threads_per_rank": (
            *(start.threads for start in starts),
            *(end.threads for end in ends if end.threads is not None),
        ),
        "world_size": tuple(start.ranks for start in starts if start.ranks is not None),
        "device": tuple(start.device.partition(":")[0] for start in starts),
        "dtype": tuple(name for start in starts for name in start.types),
        "loader_workers": tuple(start.loader_workers for start in starts if start.loader_workers is not None),
        "backend": tuple(met.backend for rank in ranks.values() for met in rank.of(Met) if met.backend),
    }
    return {name: values for name, values in found.items() if values}


def _loaders_share_cores(case: Case, starts: Sequence[RankStart]) -> bool:
    """Return whether loader workers run on cores that ranks need.

    Ranks that use GPUs of one socket each count all cores of that socket as their own.
    """
    if not case.loader_workers or not starts or starts[0].loader_cores:
        return False
    if case.device == "cpu":
        return True
    last = {start.rank: start for start in starts}  # for a rank that was started again
    at = Counter((start.host, start.cores) for start in last.values())
    each = case.threads_per_rank + case.loader_workers
    return any(ranks * each > len(cores) for (_, cores), ranks in at.items())


def _slow_interfaces(starts: Sequence[RankStart]) -> tuple[tuple[str, str, str], ...]:
    if len({start.host for start in starts}) < 2:
        return ()
    found = {(start.host, start.gloo_interface, start.faster_interface) for start in starts}
    return tuple(sorted(one for one in found if one[2]))


def _with_times(launch: Launch, ranks: Mapping[int, _Sorted], case: Case, foreign: tuple[str, ...]) -> Launch:
    every = list(ranks.values()) if len(ranks) == launch.processes else []
    one_host = len(set(_hosts(ranks).values())) <= 1
    blocks = [_blocks(rank, "timed") for rank in every]
    times = _times(blocks)
    timing = time_blocks(launch.round, times)
    evaluation = time_blocks(launch.round, _times([_blocks(rank, "evaluation") for rank in every]))
    loss_curve = loss_curve_of(launch.round, [rank.of(LossCurve) for rank in every], case, one_host=one_host)
    cores = len({core for start in _starts(ranks) for core in start.cores})
    paces = [_timed_paces(rank) for rank in every]
    by_rank = _series(dict(zip(ranks, blocks, strict=False))) if timing is not None else {}
    series = list(by_rank.values())
    launch = replace(
        launch,
        timing=replace(timing, session=launch.session) if timing is not None else None,
        step_ns=np.concatenate(series) if series else None,
        step_ranks=tuple((rank, len(own)) for rank, own in by_rank.items()),
        change=launch_change(series),
        corrections=anchor_corrections(launch.alternated, timing, times) if timing is not None else {},
        busy_waiting=busy_while_waiting(dict(zip(ranks, blocks, strict=False))),
        own_step_s=tuple(_own_step_s(of) for of in blocks) if timing is not None else (),
        faults_per_step=faults_per_step(blocks),
        evaluation=replace(evaluation, session=launch.session) if evaluation is not None else None,
        checkpoints=checkpoint_runs(launch.round, [rank.of(Checkpoint) for rank in every], one_host=one_host),
        loss_curve=replace(loss_curve, session=launch.session) if loss_curve is not None else None,
        recovered=recovered_of(launch.round, [_recovery(rank) for rank in every], case) if one_host else None,
        pace=pacing(blocks, paces, cores=cores, dilation=case.dilation),
        cpu_share=cpu_share(blocks, dilation=case.dilation),
    )
    if timing is None:
        damage = launch.damage or foreign or ("its records hold no timed steps of every rank",)
        return replace(launch, status="failed", error=damage_sentence(damage))
    return launch


def _with_flags(launch: Launch, ranks: Mapping[int, _Sorted]) -> Launch:
    warmups = [warmup for rank in ranks.values() for warmup in rank.of(Warmup)[-1:]]
    ready = all(warmup.steady or not warmup.reason.startswith(NOT_READY) for warmup in warmups)
    return replace(
        launch,
        steady=ready if warmups else None,
        ready=ready,
        flags=(*_flags(launch.noise, ready), *(["late replay"] if _is_late(launch) else [])),
    )


def _is_late(launch: Launch) -> bool:
    pace, timing = launch.pace, launch.timing
    return pace is not None and timing is not None and pace.lateness_p95_s > LATE_SHARE * timing.step_s


def _instrumented(ranks: Mapping[int, _Sorted]) -> dict[int, RankSteps]:
    hosts = _hosts(ranks)
    return {
        rank: RankSteps.of(noted, records.of(CommRecord), hosts.get(rank, ""))
        for rank, records in ranks.items()
        if (noted := records.of(StepRecord))
    }


def _beginning(rank: _Sorted) -> tuple[RankStart | None, Met | None, Warmup | None]:
    start, met, warmup = rank.of(RankStart), rank.of(Met), rank.of(Warmup)
    return (start[-1] if start else None, met[-1] if met else None, warmup[-1] if warmup else None)


def _recovery(rank: _Sorted) -> RankRecovery:
    return RankRecovery(rank.of(Gang), rank.of(Snapshot), rank.of(Trained), rank.of(Failure))


def _starts(ranks: Mapping[int, _Sorted]) -> list[RankStart]:
    return [start for rank in ranks.values() for start in rank.of(RankStart)]


def _hosts(ranks: Mapping[int, _Sorted]) -> dict[int, str]:
    return {start.rank: start.host for start in _starts(ranks)}


_R = TypeVar("_R", bound=Record)


class _Sorted:
    def __init__(self, rank: RankRecords) -> None:
        self._by_kind: dict[type, list[Any]] = defaultdict(list)
        for record in rank.records:
            self._by_kind[type(record)].append(record)

    def of(self, kind: type[_R]) -> list[_R]:
        return self._by_kind[kind]


def damage_sentence(damage: Sequence[str]) -> str:
    """Return the error of a launch with unreadable records. It gives no advice, because the case's error gives it."""
    return f"damaged records: {damage[0]}"


def _blocks(rank: _Sorted, phase: str) -> dict[int, Block]:
    return {record.index: record for record in rank.of(Block) if record.phase == phase}


def _timed_paces(rank: _Sorted) -> dict[int, Pace]:
    return {record.index: record for record in rank.of(Pace) if record.phase == "timed"}


def _times(ranks: Sequence[Mapping[int, Block]]) -> list[dict[int, BlockTimes]]:
    return [
        {
            index: BlockTimes(
                block.end_ns - block.start_ns, block.steps, block.samples, block.step_ns, block.group
            )
            for index, block in of.items()
        }
        for of in ranks
    ]


def _own_step_s(blocks: Mapping[int, Block]) -> float:
    return (
        sum(one.end_ns - one.start_ns for one in blocks.values())
        / sum(one.steps for one in blocks.values())
        / 1e9
    )


def _series(ranks: Mapping[int, Mapping[int, Block]]) -> dict[int, NDArray[np.int64]]:
    """Return each rank's step times (ns), from the blocks that all ranks recorded."""
    shared = sorted(set.intersection(*(set(blocks) for blocks in ranks.values())))
    return {
        rank: np.array([time_ns for index in shared for time_ns in blocks[index].step_ns], np.int64)
        for rank, blocks in ranks.items()
        if any(blocks[index].samples > 0 for index in shared)
    }


def _flags(noise: Noise, ready: bool) -> Iterable[str]:
    if noise.steal_fraction > STEAL_LIMIT:
        yield "steal"
    if noise.foreign_fraction > FOREIGN_LIMIT:
        yield "foreign load"
    if noise.clock_change is not None and noise.clock_change > CLOCK_LIMIT:
        yield "clock change"
    if not ready:
        yield NOT_STEADY
    if noise.throttled_s > 0:
        yield "throttled"
    if noise.shared_machine:
        yield "shared machine"
