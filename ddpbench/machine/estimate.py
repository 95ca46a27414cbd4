"""About how long a case's launches take, told before anything has run. Guesses, but not of one size for all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from ddpbench.formulas import PAYLOAD, TIMES
from ddpbench.machine.placement import early_env
from ddpbench.spec import Budget, Case, Links, PlannedCase
from ddpbench.strategies import early_imports
from ddpbench.workloads import load_workload
from ddpbench.workloads.replay import Replay
from ddpbench.workloads.shipped import PREFIX
from ddpbench.workloads.work import work_of

SERVER_START_S = 2.5
LAUNCH_OVERHEAD_S = 0.4
"""Start, building, end."""
STARTED_ANEW_S = 4.0
"""What a launch takes longer whose ranks a launcher starts anew: each imports torch."""
RAY_S = 12.0
"""What a launch takes longer under Ray: it starts its own servers first, then ranks that import torch and Ray."""
_STARTING_ANEW = {
    **dict.fromkeys(("spawn", "torchrun", "srun", "mpiexec"), STARTED_ANEW_S),
    "ray": RAY_S,
}
"""Slots of a plan have fork servers, whatever starts them: their first launches correct the guess."""
FRAMEWORK_S = 3.0
"""What importing a framework takes then, besides."""
PROOF_S = 0.7
WARMUP_AND_INSTRUMENTED = 0.5
"""Warm-up and instrumented steps as a share of the timed steps."""
RECOVERY_S = {
    "uninterrupted": 8.0,
    "exception": 12.0,
    "SIGKILL": 12.0,
    "snapshot": 12.0,
    "agent": 25.0,
    "SIGSTOP": 44.0,
    "leave": 40.0,
}
"""What a training with snapshots takes about, by what fails in it; with torchrun's start, and without time-outs."""
EVALUATION = 0.3
"""Evaluation as a share of the timed steps, its warm-up included."""
CHECKPOINTS_S = 1.0
LOADER_START_S = 2.5
"""A rank's loader workers are forked from a process that imports torch first."""
REPLAY_STEPS = 22
"""Steps of a replay's launch beside its timed ones: one-time work, warm-up, instrumented steps."""
REPLAY_TIMED = 4
"""It times as many at least."""
EMULATED_RANK_S = 0.35
"""What a launch takes longer for each rank where ranks of emulated nodes share one machine's cores."""
CROWDED_RANK_S = 0.2
"""Seconds that each rank adds to a launch or a proof where ranks share cores: measured with 8 and 16 on two cores."""
PROOF_TRANSFERS = 10
"""About so many times float32's gradients are sent in a proof: steps in float32, and in float64, twice as large."""
PROOF_STEPS = 8
"""A replay's proof computes as many, in either type."""
PROOF_S_PER_BYTE = 3e-8
"""What a proof takes longer for each rank and byte of its gradients: they are compared on the cores of all."""


OTHER_STEPS = 36
"""Steps of a training's launch beside its timed ones, at least: one-time work, warm-up, instrumented steps."""
TIMED_STEPS = 11
"""It times as many at least."""
TRIED_PROOF_STEPS = 24
TRIED_PROOF_STEPS_PER_RANK = 6
"""What a proof of an own workload takes, in steps: float64 is slow, and every rank computes all ranks' shards itself.
Measured with a small CNN on two cores: 30 at one rank, 36 at two."""
PROOF_MODELS = 2
"""So many times what making data and model once takes."""


FLOPS_PER_S = {"cpu": 1e11, "cuda": 1e14}
"""Floating-point operations per second of a thread or a GPU, for estimates: few are faster, so that a launch takes as
long at least."""
MADE_S_PER_PARAMETER = 1e-8
"""Time to make a model, whose parameters are drawn at random."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What trying a user's own workload took, in one rank and with its smallest local batch."""

    made_s: float
    """Importing its file, making its data and its model."""
    step_s: float
    local_batch: int

    def step_of(self, case: Case) -> float:
        """Return what a step of a case's local batch takes, seconds: at most in proportion to the batch."""
        return self.step_s * max(1.0, case.local_batch / self.local_batch)


def _expected(case: Case) -> Tried | None:
    """Return what a shipped workload takes by its model's size; None for others."""
    work = work_of(case)
    if work is None:
        return None
    threads = case.threads_per_rank if case.device == "cpu" else 1
    step_s = work.flops * case.local_batch / (threads * FLOPS_PER_S[case.device])
    return Tried(made_s=work.parameters * MADE_S_PER_PARAMETER, step_s=step_s, local_batch=case.local_batch)


def is_unknown(case: Case, tried: Tried | None) -> bool:
    """Return whether nothing is known of how long a case's steps take: a user's own workload that was not tried."""
    return tried is None and replay_of(case) is None and work_of(case) is None


def about(budget: Budget) -> str:
    """Return what an estimate is: `about` so long, or `at most` where launches train to a loss."""
    return "about" if budget.target_loss is None else "at most"


def server_starts_s(rounds: int, cases: Iterable[Case], *, shared: bool) -> float:
    """Return what starting torch takes in so many rounds, seconds: each has its own fork servers.

    Cases that need another environment need another server. Where sweeps share the machine (`shared`) those of the
    first round serve all.
    """
    kinds = {json.dumps(dict(early_env(case)), sort_keys=True) for case in cases}
    return (min(rounds, 1) if shared else rounds) * len(kinds) * SERVER_START_S


def crowded_ids(entries: Iterable[PlannedCase]) -> frozenset[str]:
    """Return the ids of cases whose ranks share cores; those on emulated nodes are counted by `EMULATED_RANK_S`."""
    return frozenset(
        entry.case.case_id for entry in entries if entry.oversubscribed and not entry.case.fabric
    )


def launch_s(case: Case, budget: Budget, tried: Tried | None = None, *, crowded: bool = False) -> float:
    """What one launch takes, seconds; at most, where it trains to a loss: nobody knows yet how soon it gets there.

    `tried` is what is known of a user's own workload, once it was tried; `crowded`: its ranks share cores.
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
    return steps_s + LAUNCH_OVERHEAD_S + _anew_s(case) + ranks_s + extra_s


def proof_s(case: Case, tried: Tried | None = None, *, crowded: bool = False) -> float:
    """Return what its proof takes, seconds."""
    begun_s = PROOF_S + _anew_s(case) + crowded * CROWDED_RANK_S * case.world_size
    replay, tried = replay_of(case), tried or _expected(case)
    if replay is None and tried is not None:
        steps = TRIED_PROOF_STEPS + TRIED_PROOF_STEPS_PER_RANK * case.world_size
        return begun_s + PROOF_MODELS * tried.made_s + steps * tried.step_of(case)
    if replay is None:
        return begun_s
    compared_s = PROOF_S_PER_BYTE * case.world_size * gradient_bytes(case, replay) / case.shrink
    return (
        begun_s
        + PROOF_STEPS * _computation_s(case, replay)
        + PROOF_TRANSFERS * _transfer_s(case, replay)
        + compared_s
    )


def _anew_s(case: Case) -> float:
    start_s = _STARTING_ANEW.get(case.launcher, 0.0)
    imports = start_s > 0 and case.launcher != "ray" and early_imports(case)
    return start_s + (FRAMEWORK_S if imports else 0.0)


def replay_of(case: Case) -> Replay | None:
    """Return the replay that a case runs; None for other workloads, of which no profile tells."""
    if not case.workload.startswith(PREFIX):
        return None
    workload = load_workload(case.workload)
    assert isinstance(workload, Replay)
    return workload


def gradient_bytes(case: Case, replay: Replay) -> int:
    """Return a replay's gradients as large as they stand for, before shrinking."""
    return gradient_width(case) * sum(p.elements for p in replay.profile.parameters)


def gradient_width(case: Case) -> int:
    """Return the bytes of a number of a replay's gradients."""
    return 8 if case.dtype == "float64" else 4


def _step_s(case: Case, replay: Replay) -> float:
    """Return a step on the machine's clock."""
    profile = replay.profile
    sent_s = _transfer_s(case, replay)
    hidden_s = min(case.dilation * profile.backward_s.mean, sent_s) if case.schedule == "overlapped" else 0.0
    return _computation_s(case, replay) + sent_s - hidden_s


def _computation_s(case: Case, replay: Replay) -> float:
    """Return a step of one process, on the machine's clock."""
    profile = replay.profile
    return case.dilation * (profile.forward_s.mean + profile.backward_s.mean + profile.optimizer_s.mean)


def _transfer_s(case: Case, replay: Replay) -> float:
    """Return one aggregation of the gradients over emulated links, on the machine's clock; 0 without any."""
    # All that a master's link carries, an asynchronous server's does too.
    algorithm = "master" if case.algorithm == "async_server" else case.algorithm
    if not case.fabric or case.world_size == 1 or algorithm not in TIMES:
        return 0.0
    links = Links.parse(case.fabric)
    size = gradient_bytes(case, replay)
    n, rate = case.nodes, links.limiting(algorithm, case.nodes)
    if n == 1 and links.local_bandwidth is None:
        return 0.0
    if n == 1 and links.local_bandwidth is not None:
        n, rate = case.world_size, links.local_bandwidth
    _, seconds = TIMES[algorithm]
    return case.dilation * seconds(n, size, PAYLOAD * rate / 8, 0.0)
