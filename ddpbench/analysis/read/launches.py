"""What is known of a case once it was read: its launches, with times, noise and damage, and its proof."""

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
from ddpbench.trend import Change

NOT_STEADY = "not steady"
"""The flag of a launch whose steps still changed while they were timed."""

IDLE_ENOUGH = 0.02
"""Ranks that share cores, and keep any of them busy for at most this part of the time, hardly wait for them."""


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
    largest_gradient_bytes: int | None = None
    """Gradient bytes of the largest parameter; None where it is not recorded, as in older launches."""
    types: tuple[str, ...] = ()
    """The number types of the parameters."""
    found: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    """Settings as its ranks had them, by the name in `Case`, each rank's in turn; older launches lack some."""
    changes: tuple[str, ...] = ()
    """Sentences on types and settings of a user's class that ddpbench changed in it."""
    own_step: bool = False
    """Its steps are the workload's own, which may send gradients in other amounts than once each."""
    bucket_bytes: tuple[int, ...] | None = None
    peak_memory_bytes: int | None = None
    held_bytes: tuple[int, int, int] | None = None
    """Parameters, gradients and optimizer state of the rank that holds most of them together."""
    params_equal: bool | None = None
    shares_cores: bool = False
    """Its loader workers run on the ranks' cores."""
    evaluation: Timing | None = None
    """Evaluation steps, where it was asked for."""
    checkpoints: Mapping[str, CheckpointRun] = field(default_factory=dict)
    """By method."""
    loss_curve: LossCurveRun | None = None
    """Its training to a loss, where it was asked for."""
    own_step_s: tuple[float, ...] = ()
    """Each rank's own mean time of a timed step, in the order of ranks; of ranks in step they are all the step time."""
    hosts: int = 1
    """On how many hosts its ranks ran; more than one share no clock, which step times need not."""
    slow_interfaces: tuple[tuple[str, str, str], ...] = ()
    """Each of its hosts on which gloo used a slower interface than another one there: host, that one, the faster."""
    traffic: LinkTraffic | None = None
    """What emulated links carried in timed blocks."""
    pace: Pacing | None = None
    """How a replay kept time in timed blocks."""
    cpu_share: float | None = None
    """Processor time of all its ranks in timed blocks over the time; None where not counted."""
    faults_per_step: float | None = None
    """Minor page faults of the rank that had most, in timed blocks; None where they were not counted."""
    staleness: tuple[int, ...] = ()
    """Of gradients that a server applied in timed blocks: how many were 0, 1, 2 ... updates old."""
    start_up: StartUp | None = None
    """What its start took, where its ranks tell."""
    recovered: Recovered | None = None
    """What its training with snapshots went through, where it had one."""
    damage: tuple[str, ...] = ()
    session: str = ""
    """The sweep that ran it."""

    @property
    def ok(self) -> bool:
        """Whether its numbers count."""
        return self.status == "ok" and self.timing is not None

    def correlated(self, reckoned: float) -> Launch:
        """Return it with what the intervals of its run reckon with: the correlation of rounds."""
        timing, curve = self.timing, self.loss_curve
        return replace(
            self,
            timing=replace(timing, correlation=reckoned) if timing is not None else None,
            loss_curve=replace(curve, correlation=reckoned) if curve is not None else None,
        )


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
    status: CaseStatus
    error: str
    case_id: str
    baseline_id: str
    left_out: tuple[LeftOut, ...] = ()
    """What its folder holds that does not belong there."""
    claimed: Mapping[str, Judgement] = field(default_factory=dict)
    """It against others, by their ids, where a claim of the experiment names the two (`findings/claims.py`)."""
    good: tuple[Launch, ...] = field(init=False, repr=False, compare=False)
    """The launches whose numbers count; none where the case has diverged."""

    def __post_init__(self) -> None:
        """Finds the good launches once: all that compares cases asks for them."""
        good = () if self.status == "diverged" else tuple(launch for launch in self.launches if launch.ok)
        object.__setattr__(self, "good", good)

    @property
    def case(self) -> Case:
        """The case itself."""
        return self.planned.case

    @property
    def shared_cores_share(self) -> float | None:
        """By how much, at most, steps are longer because ranks share cores, as a fraction of them.

        0 where each has its own; None where they share them and it was not counted how busy these were.
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
        """Whether its ranks shared cores, and may have waited for them long enough to matter."""
        share = self.shared_cores_share
        return share is None or share > IDLE_ENOUGH

    @property
    def unproved(self) -> str:
        """Why nothing shows what it trained, though its proof found nothing wrong; empty where something does."""
        ok = self.proof is not None and self.proof.status == "ok"
        return why_unproved(self.proof.proofs) if self.proof is not None and ok else ""

    @property
    def bucket_bytes(self) -> tuple[int, ...] | None:
        """The buckets that DDP built in its last launch; None where none were recorded."""
        known = (launch.bucket_bytes for launch in reversed(self.good))
        return next((sizes for sizes in known if sizes is not None), None)

    @property
    def timings(self) -> list[Timing]:
        """The numbers of those launches, by round."""
        return [launch.timing for launch in self.good if launch.timing is not None]

    def correlated(self, reckoned: float) -> CaseRun:
        """Return it with what the intervals of its run reckon with: the correlation of rounds."""
        return replace(self, launches=tuple(launch.correlated(reckoned) for launch in self.launches))

    @property
    def recovery(self) -> RecoveryCost | None:
        """What its planned failures came to; None where nothing was planned to fail, or to go on undisturbed."""
        good = [launch.recovered for launch in self.good if launch.recovered is not None]
        other = [
            launch.recovered
            for launch in self.launches
            if not launch.ok and launch.recovered is not None and launch.recovered.failed
        ]
        return recovery_cost(good, other)

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


def noise_words(launches: Sequence[Launch]) -> str:
    """Return what disturbed a case's launches: `steal 2/5; foreign load 1/5`. Empty where nothing did."""
    kinds = dict.fromkeys(itertools.chain.from_iterable(launch.flags for launch in launches))
    return "; ".join(
        f"{kind} {sum(kind in launch.flags for launch in launches)}/{len(launches)}" for kind in kinds
    )
