"""Reasons why a case of the matrix will not run, in words that also say what to do."""

from __future__ import annotations

import json

from ddpbench.errors import first_reason
from ddpbench.spec.case import Case
from ddpbench.spec.catalog import Catalog, StrategyInfo, WorkloadInfo
from ddpbench.spec.limits import MAX_PROCESSES
from ddpbench.spec.settings import Experiment


def skip_reason(
    case: Case,
    experiment: Experiment,
    strategy: StrategyInfo,
    workload: WorkloadInfo,
    *,
    catalog: Catalog,
    trainers: int,
) -> str | None:
    """Return the first reason why a case will not run, or None. `trainers` is the number of ranks that train."""
    return (
        _launcher_reason(case, strategy)
        or _layout_reason(case)
        or _processes_reason(case)
        or _virtual_reason(case)
        or _loss_reason(case, experiment)
        or _recovery_reason(case, trainers, one_process=strategy.one_process)
        or strategy.check(case)
        or _trainers_reason(case, trainers)
        or _pieces_reason(case, strategy, workload, catalog)
        or workload.check(case)
        or _backend_reason(case)
    )


def _launcher_reason(case: Case, strategy: StrategyInfo) -> str | None:
    """Return why the launcher cannot start the ranks, or None.

    For strategies with their own launcher, such as Ray's, no other one is suggested.
    """
    if strategy.launcher and case.launcher != strategy.launcher:
        return (
            f'{case.strategy} starts its ranks with {strategy.launcher} itself: set launcher = "local", '
            f'"torchrun" or "{strategy.launcher}", not "{case.launcher}"'
        )
    if case.launcher != "ray":
        return None
    other = f"use another strategy than {case.strategy}" if strategy.launcher else 'set launcher = "local"'
    also = "another strategy and " if strategy.launcher else ""
    return first_reason(
        (case.fabric, f"Ray starts its ranks itself, on this machine's own links: for emulated ones {other}"),
        (
            case.recovery != "off",
            f'only torchrun restarts failed ranks: use {also}launcher = "torchrun"',
        ),
        (
            case.backend == "mpi",
            'Ray forms the process group itself, and cannot use MPI: set backend = "gloo" or "nccl"',
        ),
        (case.nodes > 1, f"ddpbench starts Ray on one machine: set nodes = 1, or {other}"),
    )


def _trainers_reason(case: Case, trainers: int) -> str | None:
    if case.local_batch * trainers == case.global_batch:
        return None
    return (
        f"of {case.world_size} ranks {trainers} train under {case.strategy}, and {case.global_batch} samples do not "
        f"divide evenly over them: set global_batch to a multiple of {trainers}"
    )


def _pieces_reason(
    case: Case, strategy: StrategyInfo, workload: WorkloadInfo, catalog: Catalog
) -> str | None:
    if not strategy.pieces:
        return None
    pieces = workload.pieces(strategy.pieces)
    if not pieces:
        able = [name for name in catalog.workload_names() if catalog.workload(name).pieces(strategy.pieces)]
        names = dict.fromkeys(name.partition(":")[0] for name in able)
        return f"{case.workload} cannot be cut into {strategy.pieces}: use {' or '.join(names)}"
    wanted = strategy.piece_count(case)
    if strategy.pieces == "branches" and pieces != wanted:
        return f"{case.workload} has {pieces} branches, and each needs one rank: set world_size = {pieces}"
    if pieces < wanted:
        most = pieces * (
            case.world_size // wanted
        )  # with the same number of replicas and one layer per piece
        few = f"too few for {wanted} stages: use a world size of {most} or less"
        return f"{case.workload} has {pieces} layers to cut at, {few}"
    return None


def _virtual_reason(case: Case) -> str | None:
    if case.compute == "real" and (case.dilation != 1 or case.shrink != 1):
        what = "dilation" if case.dilation != 1 else "shrink"
        return f'{what} needs replayed computation: workload = "replay:PROFILE" (ddpbench profile makes one)'
    if case.fabric and case.launcher != "local":
        return 'a fabric is made on this machine, by the local launcher: launcher = "local"'
    if case.fabric and case.device == "cuda":
        return "GPUs have physical links: a fabric is only for ranks on the CPU, where a replay can imitate a GPU"
    return None


def _loss_reason(case: Case, experiment: Experiment) -> str | None:
    if experiment.budget.until_loss is None or case.compute == "real":
        return None
    return "a replay has no loss to bring down: leave budget.until_loss out, or train the workload itself"


def _recovery_reason(case: Case, trainers: int, *, one_process: bool) -> str | None:
    if case.recovery == "off":
        return None
    serves = trainers != case.world_size or (one_process and case.world_size > 1)
    return first_reason(
        (
            case.launcher != "torchrun",
            'only torchrun restarts failed ranks: set launcher = "torchrun"',
        ),
        (
            case.nodes > 1,
            "recovery is measured on one machine, where agents stand for nodes: set agents, and nodes = 1",
        ),
        (
            case.backend == "mpi",
            "MPI ends all ranks when one fails, so that none can be restarted: use gloo or nccl",
        ),
        (
            serves,
            (
                f"recovery needs every rank to train its own share of a step, but under {case.strategy} "
                "they do not"
            ),
        ),
        (case.compute != "real", "a replay has no state to save and restore: train the workload itself"),
        (
            case.precision == "fp16",
            "a snapshot does not hold the scale of fp16's gradients: use bf16 or full precision",
        ),
        (
            case.options.get("compression") == "powersgd",
            "a snapshot does not hold what PowerSGD carries over from step to step: use another compression",
        ),
        (
            bool(case.strategy_traits) and json.loads(case.strategy_traits)["promise"] == "delayed",
            f"a snapshot does not hold what {case.strategy_name} carries over from step to step",
        ),
        (
            case.world_size % case.agents,
            f"{case.world_size} ranks do not divide evenly over {case.agents} agents",
        ),
        (
            case.agents < 2 and case.recovery in ("agent", "leave"),
            f'recovery = "{case.recovery}" needs an agent that stays: set agents = 2 or more',
        ),
    )


def _layout_reason(case: Case) -> str | None:
    nodes = case.nodes
    if nodes > 1 and case.launcher not in ("torchrun", "slurm") and not case.fabric:
        return (
            f"ranks are started on one node; for {nodes} use ddpbench plan or submit, or emulate a [fabric]"
        )
    if case.world_size % nodes:
        return f"{case.world_size} rank{'s' if case.world_size != 1 else ''} do not divide evenly over {nodes} nodes"
    return None


def _processes_reason(case: Case) -> str | None:
    count = case.world_size * (1 + case.loader_workers)
    if case.launcher != "local" or count <= MAX_PROCESSES:
        return None
    return (
        f"{case.world_size} ranks with {case.loader_workers} loader workers each are {count:,} "
        f"processes, but one machine may have {MAX_PROCESSES:,} at most: use fewer ranks or loader "
        "workers"
    )


def _backend_reason(case: Case) -> str | None:
    if case.backend == "nccl" and case.device != "cuda":
        return "nccl moves data between GPUs only; use gloo or mpi on CPU"
    if case.backend == "mpi" and case.device != "cpu":
        return "ddpbench gives MPI only CPU memory; use nccl on GPUs"
    return None
