"""The `single` strategy: one process with one device, the base case of every speed-up."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, NoOptions, Replica, Strategy
from ddpbench.strategies.local import LocalReplica


class Single(Strategy[NoOptions]):
    """Plain training in one process, without a process group."""

    name = "single"
    role = "base"
    colour, marker = "#6B7280", "p"
    options = NoOptions
    uses_backend = False

    def check(self, case: Case) -> str | None:
        if case.world_size != 1:
            return f"single trains on one device; world size {case.world_size} needs another strategy"
        return None

    def step_reason(self, case: Case) -> None:
        return None

    def build(self, job: Job, options: NoOptions) -> Replica:
        return LocalReplica(job)
