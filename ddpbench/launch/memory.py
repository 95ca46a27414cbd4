"""Predict, before anything is started, the memory that all ranks of a case need together."""

from __future__ import annotations

import math
from dataclasses import replace

import psutil

from ddpbench.cpu_quota import memory_left, memory_quota
from ddpbench.naming import ranks_of
from ddpbench.runtime.estimate import gradient_bytes, replay_of
from ddpbench.spec import Case, PlannedCase
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_bytes
from ddpbench.workloads.work import state_bytes, work_of

PROOF_COPIES = 19
"""Memory of a rank's proof as a multiple of its gradient bytes.

The proof has models, gradients and buckets in float32 and in float64, both for the strategy and for the reference.
Measured with ResNet-50's 102 MB under DDP: 18.6 at 2 ranks and 18.4 at 4. Later, in the measured steps, the multiple is
about 3.
"""
STEP_COPIES = 3
"""Memory of a replay's rank in its measured steps as a multiple of its gradient bytes."""
OWN_COPIES = 5
"""Like `STEP_COPIES` for a user's model: parameters, gradients, buckets and two optimizer states per parameter."""
MASTER_COPIES = 2
"""Memory for each rank's gradients where one rank gathers them in float64, as a multiple of the gradient bytes."""
RANK_BYTES = 30 * 2**20
"""Memory of a rank besides its models and gradients, bytes."""
SERVER_BYTES = 300 * 2**20
"""Memory of the main process and the fork server, whose libraries all ranks share, bytes."""
MOST = 0.9
"""Usable fraction of the memory."""


def needed_bytes(case: Case) -> int | None:
    """Estimate the peak memory of all ranks of a replay together, bytes; None for other workloads."""
    replay = replay_of(case)
    if replay is None:
        return None
    gradient = gradient_bytes(case, replay) / case.shrink
    ranks = case.world_size
    gathered = _gathered(case) * MASTER_COPIES * gradient
    return round(SERVER_BYTES + ranks * (RANK_BYTES + PROOF_COPIES * gradient) + gathered)


def step_bytes(case: Case, own_bytes: int | None = None) -> int | None:
    """Estimate the memory of a launch's ranks together in its measured steps, without activations, bytes.

    `own_bytes` are the gradient bytes of a user's own model. The result is None if they are needed and unknown.
    """
    replay, state = replay_of(case), state_bytes(case)
    if replay is not None:
        held = STEP_COPIES * gradient_bytes(case, replay) / case.shrink
    elif state is not None:
        work = work_of(case)
        assert work is not None
        held = state * (3 + work.states) / (2 + work.states)  # DDP's buckets are a further copy
    elif own_bytes is not None:
        held = OWN_COPIES * own_bytes
    else:
        return None
    return round(processes_of(case) * RANK_BYTES + case.world_size * held)


def processes_of(case: Case) -> int:
    """Return the number of a launch's processes: one per rank, or one that trains all replicas."""
    return 1 if traits_of(case).one_process else case.world_size


def free_bytes() -> int:
    """Return the memory that this process and its descendants may still use, bytes."""
    available: int = psutil.virtual_memory().available
    left = memory_left()
    return available if left is None else min(available, left)


def _gathered(case: Case) -> int:
    """Return how many copies of other ranks' gradients all ranks together hold at once."""
    ranks = case.world_size
    # In the proof of an asynchronous server, every rank keeps one version of its parameters per worker.
    known = {"master": ranks, "naive_ring": ranks * ranks, "async_server": ranks * ranks}
    return known.get(case.algorithm, 0)


def memory_limit() -> int:
    """Return the memory of this machine or, if lower, the limit of this control group, bytes."""
    total: int = psutil.virtual_memory().total
    return min(total, memory_quota() or total)


def least_bytes(case: Case) -> int | None:
    """Estimate a lower bound on the memory of all ranks of a case together, bytes; None on GPUs or if unknown.

    Parameters, gradients and optimizer state count once for strategies that shard them or train in one process, and
    once per rank for others.
    """
    held = state_bytes(case) if case.device == "cpu" else None
    if held is None:
        return None
    traits = traits_of(case)
    return held * (case.world_size if traits.whole_state and not traits.one_process else 1)


def within_memory(entry: PlannedCase, limit: int) -> PlannedCase:
    """Return the planned case, with a skip reason if its ranks together need more memory than `limit` bytes allow."""
    case = entry.case
    if entry.skip_reason is not None:
        return entry
    ranks = ranks_of(case)
    least, work = least_bytes(case), work_of(case)
    if least is not None and work is not None and least > MOST * limit:
        fewer = " or fewer ranks" if case.world_size > 1 else ""
        reason = (
            f"parameters, gradients and optimizer state of {ranks} take at least {format_bytes(least)} "
            f"of memory ({work.parameters:,} parameters), but only {format_bytes(limit)} is available: "
            f"use a smaller model{fewer}"
        )
        return replace(entry, skip_reason=reason)
    needed = needed_bytes(case)
    if needed is None or needed <= MOST * limit:
        return entry
    fixed = SERVER_BYTES + case.world_size * RANK_BYTES
    room = MOST * limit - fixed
    advice = "use fewer ranks"
    if room > 0:
        advice = f"set shrink = {math.ceil(case.shrink * (needed - fixed) / room)} or more, or {advice}"
    reason = (
        f"{ranks} need about {format_bytes(needed)} of memory, but only {format_bytes(limit)} is available: "
        f"{advice}"
    )
    return replace(entry, skip_reason=reason)
