"""Estimate how long the launches of each case will take, before any launch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from ddpbench.machine.placement import early_env
from ddpbench.runtime.estimated_links import aggregation_s, exchange_s
from ddpbench.spec import Budget, Case, PlannedCase
from ddpbench.strategies import early_imports
from ddpbench.workloads import load_workload
from ddpbench.workloads.replay import Replay
from ddpbench.workloads.shipped import PREFIX
from ddpbench.workloads.work import work_of

SERVER_START_S = 2.5
LAUNCH_OVERHEAD_S = 0.4
"""Time to start a launch, build its model and end the launch (s)."""
LAUNCHER_START_S = 4.0
"""Extra time if a launcher starts the ranks, because each rank then imports torch (s)."""
RAY_S = 12.0
"""Extra time under Ray, which first starts its servers, and then ranks that import torch and Ray (s)."""
_STARTING_ANEW = {
    **dict.fromkeys(("spawn", "torchrun", "srun", "mpiexec"), LAUNCHER_START_S),
    "ray": RAY_S,
}
"""Extra time by launcher (s). For a plan's slots, which use fork servers, this is too long, and the first measured
launches correct it.
"""
FRAMEWORK_S = 3.0
"""Extra time for ranks that a launcher starts and that import a framework (s)."""
PROOF_S = 0.7
WARMUP_AND_INSTRUMENTED = 0.5
"""Time of warm-up and instrumented steps, as a fraction of the timed steps' time."""
RECOVERY_S = {
    "uninterrupted": 8.0,
    "exception": 12.0,
    "SIGKILL": 12.0,
    "snapshot": 12.0,
    "agent": 25.0,
    "SIGSTOP": 44.0,
    "leave": 40.0,
}
"""Approximate time that recovery from a planned failure adds to a launch (s), by the setting `recovery`.

Torchrun's start-up is included, but time-outs of collectives are not.
"""
EVALUATION = 0.3
"""Time of evaluation and its warm-up, as a fraction of the timed steps' time."""
CHECKPOINTS_S = 1.0
LOADER_START_S = 2.5
"""Time to start a rank's loader workers (s), which are forked from a process that first imports torch."""
REPLAY_STEPS = 22
"""Number of untimed steps in a replay's launch, for one-time work, warm-up and instrumented steps."""
REPLAY_TIMED = 4
"""Minimum number of timed steps in a replay's launch."""
EMULATED_RANK_S = 0.35
"""Extra time per rank if nodes are emulated, because all ranks then share one machine's cores (s)."""
CROWDED_RANK_S = 0.2
"""Time that each rank adds to a launch or proof if ranks share cores (s), measured with 8 and 16 ranks on two cores."""
PROOF_TRANSFERS = 10
"""Approximate number of gradient transfers in a proof, counting a transfer of float64 as two of float32."""
COMPUTED_PROOF_TRANSFERS = 14
"""Number of steps of a workload that computes, which together send about as many bytes as its proof."""
PROOF_STEPS = 8
"""Number of steps that a replay's proof computes, in float32 and float64 together."""
PROOF_S_PER_BYTE = 3e-8
"""Extra time of a proof for comparing gradients (s per rank and gradient byte)."""


OTHER_STEPS = 36
"""Minimum number of untimed steps in a launch that is not a replay, for one-time work, warm-up and instrumented
steps.
"""
TIMED_STEPS = 11
"""Minimum number of timed steps in a launch that is not a replay."""
TRIED_PROOF_STEPS = 24
TRIED_PROOF_STEPS_PER_RANK = 6
"""Time that each rank adds to the proof of a workload that is not a replay, in units of a timed step.

A proof uses float64, which is slow, and every rank computes all ranks' shards. A small CNN on two cores took the time
of 30 steps with one rank, and of 36 with two.
"""
PROOF_MODELS = 2
"""Number of times that a proof builds the data and the model."""


REPORT_S = 4.0
"""Time to read a run's records, make its table and page, and draw the first figures (s), measured on two cores."""
REPORT_CASE_S = 0.1
"""Time that each case adds to a report (s)."""
FLOPS_PER_S = {"cpu": 1e11, "cuda": 1e14}
"""Assumed floating-point operations per second of a thread or a GPU. Few are faster, so estimated times are lower
bounds.
"""
BACKWARD = 2 / 3
"""Approximate share of a step's computation that the backward pass takes, during which transfers can be hidden."""
MADE_S_PER_PARAMETER = 1e-8
"""Time to build a model with random parameters (s per parameter)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """Times and a size measured by trying a user's own workload in one rank, with its smallest local batch."""

    made_s: float
    """Time to import the workload's file and build its data and model (s)."""
    step_s: float
    local_batch: int
    sent_s: float = 0.0
    """Time in which emulated links carry what a step sends (s); 0 if it is unknown."""
    gradient_bytes: int | None = None

    def computed_s(self, case: Case) -> float:
        """Return an upper bound of a step's time with the case's local batch, without transfers (s).

        The time is assumed to grow in proportion to the batch, and to be at least the measured time.
        """
        return self.step_s * max(1.0, case.local_batch / self.local_batch)

    def step_of(self, case: Case) -> float:
        """Return an upper bound, in seconds, on a step's time with the case's local batch."""
        hidden_s = BACKWARD * self.computed_s(case) if case.schedule == "overlapped" else 0.0
        return self.computed_s(case) + max(0.0, self.sent_s - hidden_s)


def _expected(case: Case) -> Tried | None:
    work = work_of(case)
    if work is None:
        return None
    threads = case.threads_per_rank if case.device == "cpu" else 1
    step_s = work.flops * case.local_batch / (threads * FLOPS_PER_S[case.device])
    return Tried(
        made_s=work.parameters * MADE_S_PER_PARAMETER,
        step_s=step_s,
        local_batch=case.local_batch,
        sent_s=exchange_s(case, work),
    )


def is_unknown(case: Case, tried: Tried | None) -> bool:
    """Return whether the step time of a case cannot be estimated, because a user's own workload was not tried."""
    return tried is None and replay_of(case) is None and work_of(case) is None


def about(budget: Budget) -> str:
    """Return "at most" if launches train to a target loss, otherwise "about", to put before a time estimate."""
    return "about" if budget.target_loss is None else "at most"


def report_s(cases: int) -> float:
    """Return the estimated time of the report at the end of a sweep with this many cases (s)."""
    return REPORT_S + REPORT_CASE_S * cases


def server_starts_s(rounds: int, cases: Iterable[Case], *, shared: bool) -> float:
    """Return the estimated time to start the fork servers of `rounds` rounds (s).

    A round starts one server per set of environment variables. If sweeps share the machine (`shared`), only the first
    does.
    """
    kinds = {json.dumps(dict(early_env(case)), sort_keys=True) for case in cases}
    return (min(rounds, 1) if shared else rounds) * len(kinds) * SERVER_START_S


def crowded_ids(entries: Iterable[PlannedCase]) -> frozenset[str]:
    """Return the ids of cases whose ranks share cores; cases on emulated nodes are left out (see `EMULATED_RANK_S`)."""
    return frozenset(
        entry.case.case_id for entry in entries if entry.oversubscribed and not entry.case.fabric
    )


def launch_s(case: Case, budget: Budget, tried: Tried | None = None, *, crowded: bool = False) -> float:
    """Return the estimated time of one launch (s); an upper bound if the launch trains to a target loss.

    `tried` has the times of a user's own workload, if it was tried. `crowded` is true if ranks share cores.
    """
    extra_s = (
        crowded * CROWDED_RANK_S * case.world_size
        + case.evaluation * EVALUATION * budget.measured_s
        + case.checkpoint * CHECKPOINTS_S
        + (case.loader_workers > 0) * LOADER_START_S
        + (budget.target_loss.seconds if budget.target_loss is not None else 0.0)
    )
    steps_s = budget.measured_s * (1 + WARMUP_AND_INSTRUMENTED)
    replay, tried = replay_of(case), tried or _expected(case)
    if replay is not None:
        step_s = _step_s(case, replay)
        steps_s = max(
            steps_s, budget.measured_s + REPLAY_STEPS * step_s, (REPLAY_TIMED + REPLAY_STEPS) * step_s
        )
    elif tried is not None:
        step_s = tried.step_of(case)
        extra_s += tried.made_s
        steps_s = max(steps_s, budget.measured_s + OTHER_STEPS * step_s, (TIMED_STEPS + OTHER_STEPS) * step_s)
    ranks_s = EMULATED_RANK_S * case.world_size if case.fabric else 0.0
    if case.recovery != "off":
        extra_s += RECOVERY_S[case.recovery] + (
            case.collective_timeout if case.recovery == "SIGSTOP" else 0.0
        )
    return steps_s + LAUNCH_OVERHEAD_S + _launcher_start_s(case) + ranks_s + extra_s


def proof_s(case: Case, tried: Tried | None = None, *, crowded: bool = False) -> float:
    """Return the estimated time of a case's proof (s). The arguments are as in `launch_s`."""
    begun_s = PROOF_S + _launcher_start_s(case) + crowded * CROWDED_RANK_S * case.world_size
    replay, tried = replay_of(case), tried or _expected(case)
    if replay is None and tried is not None:
        steps = TRIED_PROOF_STEPS + TRIED_PROOF_STEPS_PER_RANK * case.world_size
        sent_s = COMPUTED_PROOF_TRANSFERS * tried.sent_s
        return begun_s + PROOF_MODELS * tried.made_s + steps * tried.computed_s(case) + sent_s
    if replay is None:
        return begun_s
    compared_s = PROOF_S_PER_BYTE * case.world_size * gradient_bytes(case, replay) / case.shrink
    return (
        begun_s
        + PROOF_STEPS * _computation_s(case, replay)
        + PROOF_TRANSFERS * _transfer_s(case, replay)
        + compared_s
    )


def _launcher_start_s(case: Case) -> float:
    start_s = _STARTING_ANEW.get(case.launcher, 0.0)
    imports = start_s > 0 and case.launcher != "ray" and early_imports(case)
    return start_s + (FRAMEWORK_S if imports else 0.0)


def replay_of(case: Case) -> Replay | None:
    """Return the replay that a case runs; None if its workload is not a replay."""
    if not case.workload.startswith(PREFIX):
        return None
    workload = load_workload(case.workload)
    assert isinstance(workload, Replay)
    return workload


def gradient_bytes(case: Case, replay: Replay) -> int:
    """Return the total size of a replay's gradients before shrinking (bytes)."""
    return gradient_width(case) * sum(p.elements for p in replay.profile.parameters)


def gradient_width(case: Case) -> int:
    """Return the size of one element of a replay's gradients (bytes)."""
    return 8 if case.dtype == "float64" else 4


def _step_s(case: Case, replay: Replay) -> float:
    """Return the wall time of a replay's step (s), lengthened by time dilation."""
    profile = replay.profile
    sent_s = _transfer_s(case, replay)
    hidden_s = min(case.dilation * profile.backward_s.mean, sent_s) if case.schedule == "overlapped" else 0.0
    return _computation_s(case, replay) + sent_s - hidden_s


def _computation_s(case: Case, replay: Replay) -> float:
    """Return the wall time of a replay's step without transfers (s), lengthened by time dilation."""
    profile = replay.profile
    return case.dilation * (profile.forward_s.mean + profile.backward_s.mean + profile.optimizer_s.mean)


def _transfer_s(case: Case, replay: Replay) -> float:
    """Return the wall time of one aggregation over emulated links (s), with time dilation; 0 without links."""
    return aggregation_s(case, gradient_bytes(case, replay))
