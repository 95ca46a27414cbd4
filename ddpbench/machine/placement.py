"""Deal a machine's cores to the ranks on it: the same rule for the fork server's ranks and for slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpbench.spec import Case
from ddpbench.strategies import early_imports, load_strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Stand:
    """A rank's cores, and those of its loader workers: empty if it starts no workers, or they share the rank's."""

    cores: tuple[int, ...]
    loader_cores: tuple[int, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that give the rank its cores."""
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
    """Return a stand for each of `ranks` ranks of one machine, `threads` cores each while there are enough.

    More ranks than cores share them, rank modulo core. `nearby` names instead the cores next to each rank's GPU, which
    its loader workers share at every number of ranks. Otherwise these (`loader_workers` per rank) get the cores left
    over: each its own if there are enough, all of them together if there are fewer; without any they share the rank's.
    Ranks that are not `pinned` may use all cores, their loader workers too.
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
"""The framework that a fork server imports; no code reads it, but it distinguishes servers."""


def early_env(case: Case) -> Mapping[str, str]:
    """Return what must be set before a rank's process imports anything; launches with the same share a fork server.

    An empty text stands for a variable that must not be set (`applied` removes it). A framework that is
    imported before ranks are forked has a separate server: else its pages would count as memory of all others' ranks.
    """
    framework = load_strategy(case.strategy).framework if early_imports(case) else ""
    return {
        **({FRAMEWORK_VARIABLE: framework} if early_imports(case) else {}),
        # after a timeout NCCL's watchdog otherwise sleeps for a minute, so that others can log what they were doing
        **({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"} if case.recovery != "off" and case.device == "cuda" else {}),
        "OMP_NUM_THREADS": str(case.threads_per_rank),
        "MKL_NUM_THREADS": str(case.threads_per_rank),
        "OPENBLAS_NUM_THREADS": "1",  # otherwise importing numpy starts a thread, and forking is unsafe
        **case.env,
    }


def applied(env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the variables that were asked for."""
    return {name: value for name, value in {**env, **asked}.items() if name not in asked or value}
