"""Cases as read from a run: their launches, with times, disturbances and damage, and their proofs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.checkpoints import CheckpointRun
from ddpbench.analysis.read.loss_curves import LossCurveRun
from ddpbench.analysis.read.overlap import PARTS, Breakdown
from ddpbench.analysis.read.pace import Pacing
from ddpbench.analysis.read.traffic import LinkTraffic
from ddpbench.analysis.recovery import Recovered, RecoveryCost, recovery_cost
from ddpbench.analysis.startup import StartUp
from ddpbench.analysis.statistics.judgement import Judgement
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.records import CaseStatus, LeftOut, Noise, Proof, Status, why_unproved
from ddpbench.spec import Case, PlannedCase
from ddpbench.trend import TrendChange

NOT_STEADY = "not steady"
"""Flag of a launch whose steps still changed while they were timed."""

IDLE_ENOUGH = 0.02
"""If shared cores are busy for at most this share of the time, ranks are assumed to hardly wait for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A finished measuring launch. `timing` is None if it has no usable numbers."""

    case_id: str
    round: int
    status: Status
    error: str = ""
    phase: str = ""
    last_log_line: str = ""
    timing: Timing | None = None
    step_ns: NDArray[np.int64] | None = None
    """Times of single steps of all ranks that take samples, one rank after the other."""
    step_ranks: tuple[tuple[int, int], ...] = ()
    """For each rank in `step_ns`, in the same order: the rank, and its number of steps."""
    wall_s: float = 0.0
    measured_s: float = 0.0
    server_s: float = 0.0
    noise: Noise = field(default_factory=Noise)
    steady: bool | None = None
    """True if one-time work was done before the timed steps, and these did not change (`statistics/steady.py`)."""
    change: TrendChange | None = None
    """Change of the step time from the first to the last timed steps; None if there are too few steps."""
    ready: bool = True
    """True if every rank's one-time work, such as rebuilding buckets, was done before the timed steps."""
    flags: tuple[str, ...] = ()
    processes: int = 1
    parameters: int | None = None
    gradient_bytes: int | None = None
    largest_gradient_bytes: int | None = None
    """Gradient bytes of the largest parameter; None if not recorded, as in older launches."""
    types: tuple[str, ...] = ()
    """Number types of the parameters, such as `float32`."""
    found: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    """Values that the ranks recorded for each setting, by its name in `Case`. Older launches lack some settings."""
    changes: tuple[str, ...] = ()
    """Sentences on types and settings of a user's class that ddpbench changed."""
    own_step: bool = False
    """True if the workload has its own `step`, which may send each gradient more than once or not at all."""
    bucket_bytes: tuple[int, ...] | None = None
    peak_memory_bytes: int | None = None
    held_bytes: tuple[int, int, int] | None = None
    """Bytes of parameters, gradients and optimizer state on the rank that stores the most in total."""
    params_equal: bool | None = None
    shares_cores: bool = False
    """True if its loader workers run on the ranks' cores."""
    evaluation: Timing | None = None
    """Timing of evaluation steps; None if not requested."""
    checkpoints: Mapping[str, CheckpointRun] = field(default_factory=dict)
    """Checkpoints, by method."""
    loss_curve: LossCurveRun | None = None
    """Training to a loss in this launch; None if not requested."""
    own_step_s: tuple[float, ...] = ()
    """Each rank's mean time of a timed step, in the order of ranks. In synchronous training all equal the step time."""
    hosts: int = 1
    """Number of hosts of its ranks. Several hosts have no common clock, but step times need none."""
    slow_interfaces: tuple[tuple[str, str, str], ...] = ()
    """Hosts on which gloo did not use the fastest interface, each as host, used interface, faster interface."""
    traffic: LinkTraffic | None = None
    """Traffic over emulated links in timed blocks."""
    pace: Pacing | None = None
    """Accuracy of a replay's moments in timed blocks; None if the launch was not a replay."""
    cpu_share: float | None = None
    """Processor time of all its ranks in timed blocks, divided by the time of the blocks; None if not counted."""
    faults_per_step: float | None = None
    """Minor page faults per step of the rank that had most, in timed blocks; None if not counted."""
    staleness: tuple[int, ...] = ()
    """Numbers of gradients that were 0, 1, 2, ... updates old when a server applied them in timed blocks."""
    start_up: StartUp | None = None
    """Parts of its start-up; None if its ranks did not record them."""
    recovered: Recovered | None = None
    """Training with snapshots and recovery from failures in this launch; None if it trained without snapshots."""
    damage: tuple[str, ...] = ()
    session: str = ""
    """Session of the sweep that ran it."""
    alternated: tuple[tuple[str, ...], ...] = ()
    """The groups of launches with which its blocks alternated, each as case ids; empty in older records."""
    corrections: Mapping[str, float] = field(default_factory=dict)
    """If it is the anchor of several groups: the other launches' corrections, by case id (`read/alternation.py`)."""
    busy_waiting: float | None = None
    """Processor time of a rank that waited for its turn, divided by the time waited; None if it hardly waited."""

    @property
    def alternates(self) -> bool:
        """Return whether its blocks of steps alternated with those of other launches."""
        return bool(self.alternated) or self.noise.in_turn

    @property
    def late_correction(self) -> float:
        """Return the factor, in comparisons, of times measured after the timed blocks, such as instrumented steps.

        The anchor of several groups measures them among its last group, and other launches in the group of their timed
        blocks.
        """
        last = self.alternated[-1] if self.alternated else ()
        own = self.timing.correction if self.timing is not None else 1.0
        return next((self.corrections[other] for other in last if other in self.corrections), own)

    @property
    def ok(self) -> bool:
        """Return whether the launch succeeded and has a timing."""
        return self.status == "ok" and self.timing is not None

    def correlated(self, reckoned: float) -> Launch:
        """Return a copy of the launch in whose timings `reckoned` is the correlation of rounds.

        The correlation widens intervals.
        """
        timing, curve = self.timing, self.loss_curve
        return replace(
            self,
            timing=replace(timing, correlation=reckoned) if timing is not None else None,
            loss_curve=replace(curve, correlation=reckoned) if curve is not None else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofRun:
    """The launch that checked a case's training before it was timed."""

    status: Status
    error: str
    phase: str
    last_log_line: str
    proofs: tuple[Proof, ...]
    flops_per_sample: float | None
    dataset_samples: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRun:
    """A planned case with its launches and all data read from their records."""

    planned: PlannedCase
    launches: tuple[Launch, ...]
    proof: ProofRun | None
    parts: Breakdown | None
    status: CaseStatus
    error: str
    case_id: str
    baseline_id: str
    left_out: tuple[LeftOut, ...] = ()
    """Misplaced files and folders found in the case's folder."""
    claimed: Mapping[str, Judgement] = field(default_factory=dict)
    """Judgements on pairs that a claim of the experiment names, by the other case's id (`findings/claims.py`)."""
    good: tuple[Launch, ...] = field(init=False, repr=False, compare=False)
    """Successful launches with a timing; empty if the case has diverged."""

    def __post_init__(self) -> None:
        """Compute `good` once, because every comparison of cases needs it."""
        good = () if self.status == "diverged" else tuple(launch for launch in self.launches if launch.ok)
        object.__setattr__(self, "good", good)

    @property
    def case(self) -> Case:
        """Return the planned case's settings."""
        return self.planned.case

    @property
    def shared_cores_share(self) -> float | None:
        """Return the largest fraction of a step in which ranks may have waited for shared cores.

        It is 0 for separate cores, and None if processor time was not counted.
        """
        if not self.planned.oversubscribed:
            return 0.0
        shares = [launch.cpu_share for launch in self.good]
        counted = [share for share in shares if share is not None]
        if self.case.loader_workers or not counted or len(counted) < len(shares):
            return None
        return max(counted)

    @property
    def oversubscribed(self) -> bool:
        """Return whether the case's ranks shared cores and may have waited for them long enough to matter."""
        share = self.shared_cores_share
        return share is None or share > IDLE_ENOUGH

    @property
    def unproved(self) -> str:
        """Return why the proof could not check the case's training; empty if it could, or if it found a fault."""
        ok = self.proof is not None and self.proof.status == "ok"
        return why_unproved(self.proof.proofs) if self.proof is not None and ok else ""

    @property
    def bucket_bytes(self) -> tuple[int, ...] | None:
        """Return the bytes of each bucket that DDP built in the last launch; None if not recorded."""
        known = (launch.bucket_bytes for launch in reversed(self.good))
        return next((sizes for sizes in known if sizes is not None), None)

    @property
    def timings(self) -> list[Timing]:
        """Return the timings of the launches in `good`, in the order of rounds."""
        return [launch.timing for launch in self.good if launch.timing is not None]

    def correlated(self, reckoned: float) -> CaseRun:
        """Return a copy of the case in whose timings `reckoned` is the correlation of rounds.

        The correlation widens intervals.
        """
        return replace(self, launches=tuple(launch.correlated(reckoned) for launch in self.launches))

    @property
    def recovery(self) -> RecoveryCost | None:
        """Return the cost of the case's planned failures; None if the case did not train with snapshots."""
        good = [launch.recovered for launch in self.good if launch.recovered is not None]
        other = [
            launch.recovered
            for launch in self.launches
            if not launch.ok and launch.recovered is not None and launch.recovered.failed
        ]
        return recovery_cost(good, other)

    @property
    def instrumented_over_timed(self) -> list[float]:
        """Return the log ratio of instrumented to timed step time of each launch in `good`, from means over ranks."""
        if self.parts is None:
            return []
        return [
            math.log(instrumented / fmean(launch.own_step_s))
            for launch in self.good
            if launch.own_step_s
            and (own := self.parts.by_round.get(launch.round)) is not None
            and (instrumented := math.fsum(own[name] for name in PARTS)) > 0
        ]


def noise_words(launches: Sequence[Launch]) -> str:
    """Describe what disturbed a case's launches, as in `steal 2/5; foreign load 1/5`.

    Empty if nothing disturbed them.
    """
    kinds = dict.fromkeys(itertools.chain.from_iterable(launch.flags for launch in launches))
    return "; ".join(
        f"{kind} {sum(kind in launch.flags for launch in launches)}/{len(launches)}" for kind in kinds
    )
