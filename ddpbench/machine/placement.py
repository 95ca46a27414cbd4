"""Distribute a machine's cores among its ranks, by the same rule for a fork server's ranks and for a plan's slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpbench.spec import Case
from ddpbench.strategies import early_imports, load_strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Stand:
    """The cores of a rank and of its loader workers (empty without workers, or if they share the rank's)."""

    cores: tuple[int, ...]
    loader_cores: tuple[int, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables by which the rank learns its cores and its loader workers' cores."""
        env = {"DDPBENCH_CORES": ",".join(map(str, self.cores))}
        if self.loader_cores:
            env["DDPBENCH_LOADER_CORES"] = ",".join(map(str, self.loader_cores))
        return env


def deal(
    cores: Sequence[int],
    ranks: int,
    *,
    threads: int,
    loader_workers: int = 0,
    nearby: Sequence[Sequence[int]] = (),
    pinned: bool = True,
) -> list[Stand]:
    """Return the cores of each of `ranks` ranks on one machine: `threads` cores per rank, if there are enough.

    Otherwise several ranks share cores. Loader workers get one remaining core each, or share the remaining cores, or
    use their rank's. `nearby` restricts each rank to the cores close to its GPU. If not `pinned`, all use all cores.
    """
    if not pinned:
        return [Stand(cores=tuple(cores))] * ranks
    if nearby:
        return [Stand(cores=tuple(near)) for near in nearby]
    dealt = [
        tuple(sorted({cores[(rank * threads + offset) % len(cores)] for offset in range(threads)}))
        for rank in range(ranks)
    ]
    used = {core for own in dealt for core in own}
    free = [core for core in cores if core not in used]
    if not loader_workers or not free:
        return [Stand(cores=own) for own in dealt]
    if len(free) < ranks * loader_workers:
        return [Stand(cores=own, loader_cores=tuple(free)) for own in dealt]
    return [
        Stand(cores=own, loader_cores=tuple(free[rank * loader_workers : (rank + 1) * loader_workers]))
        for rank, own in enumerate(dealt)
    ]


FRAMEWORK_VARIABLE = "DDPBENCH_FRAMEWORK"
"""Environment variable with the framework that a fork server imports. No code reads it, but it makes servers differ."""


def early_env(case: Case) -> Mapping[str, str]:
    """Return the environment variables that must be set before a rank's process imports anything.

    Launches with equal variables share a fork server. `applied` removes a variable with an empty value. A framework
    imported before the fork gets a separate server, to keep it out of other ranks' memory.
    """
    framework = load_strategy(case.strategy).framework if early_imports(case) else ""
    return {
        **({FRAMEWORK_VARIABLE: framework} if early_imports(case) else {}),
        # otherwise NCCL's watchdog sleeps for a minute after a timeout, so that other ranks can log their state
        **({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"} if case.recovery != "off" and case.device == "cuda" else {}),
        "OMP_NUM_THREADS": str(case.threads_per_rank),
        "MKL_NUM_THREADS": str(case.threads_per_rank),
        "OPENBLAS_NUM_THREADS": "1",  # otherwise importing numpy starts a thread, and forking is unsafe
        **case.env,
    }


def applied(env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return the environment `env` with the variables in `asked`; a variable that is empty in `asked` is removed."""
    return {name: value for name, value in {**env, **asked}.items() if name not in asked or value}
