"""A run directory read into cases and their launches: times, noise, damage. No table, no statistics.

Records become times here, and go through `virtual.nominal` first: whatever is computed from a launch is the job's.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.checkpoints import SnapshotRun, snapshot_runs
from ddpbench.analysis.descents import Descent, descent_of
from ddpbench.analysis.read.faults import faults_per_step
from ddpbench.analysis.read.overlap import PARTS, Breakdown, breakdown
from ddpbench.analysis.read.pace import LATE_SHARE, Pacing, pacing
from ddpbench.analysis.read.staleness import added
from ddpbench.analysis.read.steptime import BlockTimes, time_blocks
from ddpbench.analysis.read.traffic import NodeTraffic, node_traffic
from ddpbench.analysis.read.transfers import RankSteps
from ddpbench.analysis.read.virtual import nominal
from ddpbench.analysis.statistics.stats import Timing
from ddpbench.analysis.statistics.steady import NOT_READY, launch_change, unsteady
from ddpbench.errors import IdentityError
from ddpbench.records import (
    WORST_FIRST,
    Block,
    Buckets,
    CommRecord,
    Costs,
    Curve,
    Held,
    LaunchDir,
    LaunchRecords,
    Noise,
    Pace,
    Proof,
    RankOutcome,
    RankRecords,
    RankStart,
    Record,
    RunDir,
    Snapshot,
    Staleness,
    Status,
    StepRecord,
    Traffic,
    Warmup,
    read_launch,
)
from ddpbench.records.plan import StoredPlan
from ddpbench.records.sessions import UNKNOWN, Sessions
from ddpbench.spec import Budget, Case, PlannedCase
from ddpbench.trend import Change

STEAL_LIMIT = 0.01
"""Share of the usable cores' time given to other virtual machines above which a launch is flagged."""
FOREIGN_LIMIT = 0.05
"""Likewise, time used by processes that are not the sweep's."""
CLOCK_LIMIT = 0.05
"""Relative change of a core's clock during a launch above which it is flagged."""
NOT_STEADY = "not steady"
"""The flag of a launch whose steps still changed while they were timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A finished measuring launch. `timing` is None where it has no numbers."""

    case_id: str
    round: int
    status: Status
    error: str = ""
    phase: str = ""
    last_log_line: str = ""
    timing: Timing | None = None
    step_ns: NDArray[np.int64] | None = None
    """Times of single steps, all ranks' together; ranks that take no samples have none."""
    wall_s: float = 0.0
    measured_s: float = 0.0
    server_s: float = 0.0
    noise: Noise = field(default_factory=Noise)
    steady: bool | None = None
    """Whether one-time work was done before the timed steps, and these did not change (`statistics/steady.py`)."""
    change: Change | None = None
    """From the first to the last of its timed steps; None where there are too few."""
    ready: bool = True
    """Whether every rank's one-time work, such as rebuilding buckets, was done before the timed steps."""
    flags: tuple[str, ...] = ()
    processes: int = 1
    parameters: int | None = None
    gradient_bytes: int | None = None
    bucket_bytes: tuple[int, ...] | None = None
    peak_memory_bytes: int | None = None
    held_bytes: tuple[int, int, int] | None = None
    """Parameters, gradients and optimizer state of the rank that holds most of them together."""
    params_equal: bool | None = None
    shares_cores: bool = False
    """Its loader workers run on the ranks' cores."""
    evaluation: Timing | None = None
    """Evaluation steps, where it was asked for."""
    snapshots: Mapping[str, SnapshotRun] = field(default_factory=dict)
    """By method."""
    descent: Descent | None = None
    """Its training to a loss, where it was asked for."""
    own_step_s: tuple[float, ...] = ()
    """Each rank's own mean time of a timed step, in the order of ranks; of ranks in step they are all the step time."""
    hosts: int = 1
    """On how many hosts its ranks ran; more than one share no clock, which step times need not."""
    traffic: NodeTraffic | None = None
    """What emulated links carried in timed blocks."""
    pace: Pacing | None = None
    """How a replay kept time in timed blocks."""
    faults_per_step: float | None = None
    """Minor page faults of the rank that had most, in timed blocks; None where they were not counted."""
    staleness: tuple[int, ...] = ()
    """Of gradients that a server applied in timed blocks: how many were 0, 1, 2 ... updates old."""
    damage: tuple[str, ...] = ()
    session: str = ""
    """The sweep that ran it."""

    @property
    def ok(self) -> bool:
        """Whether its numbers count."""
        return self.status == "ok" and self.timing is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofRun:
    """The launch that proved a case, or did not."""

    status: Status
    error: str
    phase: str
    last_log_line: str
    proofs: tuple[Proof, ...]
    flops_per_sample: float | None
    dataset_samples: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRun:
    """A planned case and what came of it."""

    planned: PlannedCase
    launches: tuple[Launch, ...]
    proof: ProofRun | None
    parts: Breakdown | None
    status: Status
    error: str
    case_id: str
    baseline_id: str

    @property
    def case(self) -> Case:
        """The case itself."""
        return self.planned.case

    @property
    def good(self) -> list[Launch]:
        """The launches whose numbers count; none where the case has diverged."""
        return [] if self.status == "diverged" else [launch for launch in self.launches if launch.ok]

    @property
    def timings(self) -> list[Timing]:
        """The numbers of those launches, by round."""
        return [launch.timing for launch in self.good if launch.timing is not None]

    @property
    def instrumented_over_timed(self) -> list[float]:
        """The log ratio of instrumented over timed step of each good launch: means over ranks of their own steps."""
        if self.parts is None:
            return []
        return [
            math.log(instrumented / fmean(launch.own_step_s))
            for launch in self.good
            if launch.own_step_s
            and (own := self.parts.by_round.get(launch.round)) is not None
            and (instrumented := math.fsum(own[name] for name in PARTS)) > 0
        ]


def read_cases(run: RunDir, plan: StoredPlan) -> list[CaseRun]:
    """Return every planned case with its launches, in the plan's order. Unfinished launches are not among them.

    Raises:
        IdentityError: a case's contents do not give the id that the plan names.
    """
    found: list[CaseRun] = []
    sessions = Sessions.of(run)
    for planned, case_id in zip(plan.cases, plan.ids, strict=True):
        if planned.case.case_id != case_id:
            raise IdentityError(
                f"{run.plan} is damaged: the case called {case_id} has the contents of {planned.case.case_id}"
            )
        launches: list[Launch] = []
        steps: dict[int, dict[int, RankSteps]] = {}
        for directory in run.launches(case_id):
            read = read_measurement(directory, case_id, planned.case, sessions)
            if read is not None:
                launches.append(read[0])
                if read[1]:
                    steps[read[0].round] = read[1]
        proof = _read_proof(run.launch(case_id, "proof"))
        status, error = _status(planned, launches, proof, plan.budget, run.path)
        processes = max((launch.processes for launch in launches), default=1)
        found.append(
            CaseRun(
                planned=planned,
                launches=tuple(launches),
                proof=proof,
                parts=breakdown(list(steps.values()), processes, list(steps), planned.case.backend)
                if status != "diverged"
                else None,
                status=status,
                error=error,
                case_id=case_id,
                baseline_id=planned.case.baseline().case_id,
            )
        )
    return judged(found)


def judged(cases: Sequence[CaseRun]) -> list[CaseRun]:
    """All cases of a run, their launches flagged where they were not steady; to be repeated when more cases come."""
    changes = {run.case_id: [x.change for x in run.good if x.change is not None] for run in cases}
    found = unsteady(changes)
    judged_runs: list[CaseRun] = []
    for run in cases:
        verdicts = iter(found[run.case_id])
        good = set(map(id, run.good))
        launches = tuple(
            _judged(launch, next(verdicts)) if id(launch) in good and launch.change is not None else launch
            for launch in run.launches
        )
        judged_runs.append(replace(run, launches=launches))
    return judged_runs


def _judged(launch: Launch, changing: bool) -> Launch:
    """A launch that was steady or not by its timed steps; one whose one-time work was not done stays as it is."""
    if not launch.ready:
        return launch
    others = tuple(flag for flag in launch.flags if flag != NOT_STEADY)
    return replace(launch, steady=not changing, flags=(*others, NOT_STEADY) if changing else others)


def read_measurement(
    directory: LaunchDir, case_id: str, case: Case, sessions: Sessions = UNKNOWN
) -> tuple[Launch, dict[int, RankSteps]] | None:
    """Return a measuring launch and its instrumented steps by rank, or None while it is unfinished.

    Records that cannot be read make it `failed`; what is not ok has no steps. `sessions` tell which one ran it where
    its outcome does not.
    """
    if not directory.outcome.exists():
        return None
    records = read_launch(directory)
    number = int(directory.path.name.removeprefix("launch-"))
    outcome = records.outcome
    if outcome is None:
        error = _damage_sentence(records.damage)
        failed = Launch(case_id=case_id, round=number, status="failed", error=error, damage=records.damage)
        return failed, {}
    ranks = {rank.rank: _Sorted(rank) for rank in nominal(records.ranks, case)}
    processes = max(len(outcome.exit_codes), len(ranks))
    status, error = outcome.status, outcome.error
    timing: Timing | None = None
    step_ns: NDArray[np.int64] | None = None
    change: Change | None = None
    evaluation: Timing | None = None
    snapshots: Mapping[str, SnapshotRun] = {}
    descent: Descent | None = None
    pace: Pacing | None = None
    faults: float | None = None
    own_step_s: tuple[float, ...] = ()
    starts = [start for rank in ranks.values() for start in rank.of(RankStart)]
    hosts = {start.rank: start.host for start in starts}
    if status == "ok":
        every = list(ranks.values()) if len(ranks) == processes else []
        one_host = len(set(hosts.values())) <= 1
        blocks = [_blocks(rank, "timed") for rank in every]
        timing = time_blocks(number, _times(blocks))
        faults = faults_per_step(blocks)
        evaluation = time_blocks(number, _times([_blocks(rank, "evaluation") for rank in every]))
        snapshots = snapshot_runs(number, [rank.of(Snapshot) for rank in every], one_host=one_host)
        descent = descent_of(number, [rank.of(Curve) for rank in every], case, one_host=one_host)
        cores = len({core for start in starts for core in start.cores})
        paces = [_timed_paces(rank) for rank in every]
        pace = pacing(blocks, paces, cores=cores, dilation=case.dilation)
        if timing is not None:
            series = _series(blocks)
            step_ns, change = np.concatenate(series), launch_change(series)
            own_step_s = tuple(_own_step_s(of) for of in blocks)
        else:
            status = "failed"
            error = _damage_sentence(records.damage or ("its records hold no timed steps of every rank",))
    session = sessions.session_of(outcome.session, outcome.started_utc)
    start = starts[0] if starts else None
    ends = [end for rank in ranks.values() for end in rank.of(RankOutcome)[-1:]]
    warmups = [warmup for rank in ranks.values() for warmup in rank.of(Warmup)[-1:]]
    buckets = next((record for rank in ranks.values() for record in reversed(rank.of(Buckets))), None)
    peaks = [end.peak_memory_bytes for end in ends if end.peak_memory_bytes is not None]
    held = [
        (each.parameter_bytes, each.gradient_bytes, each.optimizer_bytes)
        for rank in ranks.values()
        for each in rank.of(Held)
    ]
    checksums = [end.params_checksum for end in ends if end.params_checksum]
    ready = all(warmup.steady or not warmup.reason.startswith(NOT_READY) for warmup in warmups)
    late = pace is not None and timing is not None and pace.lateness_p95_s > LATE_SHARE * timing.step_s
    launch = Launch(
        case_id=case_id,
        round=number,
        status=status,
        error=error,
        phase=outcome.phase,
        last_log_line=outcome.last_log_line,
        timing=replace(timing, session=session) if timing is not None else None,
        step_ns=step_ns,
        own_step_s=own_step_s,
        wall_s=outcome.wall_s,
        measured_s=outcome.measured_s,
        server_s=outcome.server_s,
        noise=outcome.noise,
        steady=ready if warmups else None,
        change=change,
        ready=ready,
        flags=(*_flags(outcome.noise, ready), *(["late replay"] if late else [])),
        processes=processes,
        parameters=start.parameters if start is not None else None,
        gradient_bytes=start.gradient_bytes if start is not None else None,
        bucket_bytes=buckets.bytes if buckets is not None else None,
        peak_memory_bytes=max(peaks, default=None),
        held_bytes=max(held, key=sum, default=None),
        params_equal=len(set(checksums)) == 1 if len(checksums) > 1 else None,
        shares_cores=case.loader_workers > 0 and start is not None and not start.loader_cores,
        evaluation=replace(evaluation, session=session) if evaluation is not None else None,
        snapshots=snapshots,
        descent=replace(descent, session=session) if descent is not None else None,
        hosts=len(set(hosts.values())),
        traffic=node_traffic(record for rank in ranks.values() for record in rank.of(Traffic)),
        pace=pace,
        faults_per_step=faults,
        staleness=added(record.counts for rank in ranks.values() for record in rank.of(Staleness)),
        damage=records.damage,
        session=session,
    )
    if status != "ok":
        return launch, {}
    steps = {
        rank: RankSteps(noted, records.of(CommRecord), hosts.get(rank, ""))
        for rank, records in ranks.items()
        if (noted := records.of(StepRecord))
    }
    return launch, steps


_R = TypeVar("_R", bound=Record)


class _Sorted:
    """One rank's records by kind."""

    def __init__(self, rank: RankRecords) -> None:
        self._by_kind: dict[type, list[Any]] = defaultdict(list)
        for record in rank.records:
            self._by_kind[type(record)].append(record)

    def of(self, kind: type[_R]) -> list[_R]:
        return self._by_kind[kind]


def _damage_sentence(damage: Sequence[str]) -> str:
    return f"damaged records: {damage[0]}; rerun the sweep with --retry-failed"


def _blocks(rank: _Sorted, phase: str) -> dict[int, Block]:
    return {record.index: record for record in rank.of(Block) if record.phase == phase}


def _timed_paces(rank: _Sorted) -> dict[int, Pace]:
    return {record.index: record for record in rank.of(Pace) if record.phase == "timed"}


def _times(ranks: Sequence[Mapping[int, Block]]) -> list[dict[int, BlockTimes]]:
    """Return each rank's blocks as `time_blocks` takes them."""
    return [
        {
            index: BlockTimes(block.end_ns - block.start_ns, block.steps, block.samples, block.step_ns)
            for index, block in of.items()
        }
        for of in ranks
    ]


def _own_step_s(blocks: Mapping[int, Block]) -> float:
    """Return a rank's mean step over its blocks, seconds."""
    return (
        sum(one.end_ns - one.start_ns for one in blocks.values())
        / sum(one.steps for one in blocks.values())
        / 1e9
    )


def _series(ranks: Sequence[Mapping[int, Block]]) -> list[NDArray[np.int64]]:
    """Return the single steps of each rank that takes samples, in blocks that all ranks have."""
    shared = sorted(set.intersection(*(set(blocks) for blocks in ranks)))
    return [
        np.concatenate([np.array(blocks[index].step_ns, np.int64) for index in shared])
        for blocks in ranks
        if any(blocks[index].samples > 0 for index in shared)
    ]


def _flags(noise: Noise, ready: bool) -> Iterable[str]:
    """Words for what disturbed a launch."""
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


def _read_proof(directory: LaunchDir) -> ProofRun | None:
    if not directory.outcome.exists():
        return None
    records: LaunchRecords = read_launch(directory)
    first = min(records.ranks, key=lambda rank: rank.rank, default=None)
    costs = first.last(Costs) if first is not None else None
    outcome = records.outcome
    return ProofRun(
        status=outcome.status if outcome is not None else "failed",
        error=outcome.error if outcome is not None else _damage_sentence(records.damage),
        phase=outcome.phase if outcome is not None else "",
        last_log_line=outcome.last_log_line if outcome is not None else "",
        proofs=tuple(first.of(Proof)) if first is not None else (),
        flops_per_sample=costs.flops_per_sample if costs is not None else None,
        dataset_samples=costs.dataset_samples if costs is not None else None,
    )


def _status(
    planned: PlannedCase, launches: Sequence[Launch], proof: ProofRun | None, budget: Budget, path: Path
) -> tuple[Status, str]:
    """Return a case's status, and for what is not ok a sentence that says what to do."""
    if planned.skip_reason is not None:
        return "skipped", planned.skip_reason
    if proof is not None and proof.status != "ok":
        return proof.status, proof.error or "the proof before timing failed; see its log in the case's folder"
    ok = sum(launch.ok for launch in launches)
    bad = [launch for launch in launches if not launch.ok]
    if ok >= budget.rounds_min:
        return "ok", ""
    if bad:
        worst = min(bad, key=lambda launch: WORST_FIRST.index(launch.status))
        counted = f"{len(bad)} of {len(launches)} launches {'were' if len(bad) != 1 else 'was'} not ok"
        again = f"ddpbench sweep {path} --retry-failed"
        if planned.case.launcher != "local":
            again = f"{resume_command(planned.case.launcher, path)}, with --retry-failed at their end"
        advice = f"after fixing this, measure again with: {again}"
        return worst.status, f"round {worst.round + 1}: {worst.error} ({counted}; {advice})"
    sentence = f"measured in {ok} of at least {budget.rounds_min} rounds so far"
    return "failed", f"{sentence}; resume with: {resume_command(planned.case.launcher, path)}"


def resume_command(launcher: str, path: Path | str) -> str:
    """Return what goes on with a run: a sweep, or the lines for another launcher."""
    return f"ddpbench sweep {path}" if launcher == "local" else f"the lines of ddpbench plan {path}"


def noise_words(launches: Sequence[Launch]) -> str:
    """Return what disturbed a case's launches: `steal 2/5; foreign load 1/5`. Empty where nothing did."""
    kinds = dict.fromkeys(itertools.chain.from_iterable(launch.flags for launch in launches))
    return "; ".join(
        f"{kind} {sum(kind in launch.flags for launch in launches)}/{len(launches)}" for kind in kinds
    )
