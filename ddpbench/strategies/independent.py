"""The `independent` strategy, the upper bound: ranks compute at the same time and aggregate nothing."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, NoOptions, Replica, Strategy
from ddpbench.strategies.local import LocalReplica


class Independent(Strategy[NoOptions]):
    """Every rank trains by itself; if ranks are slower than `single`, they share hardware."""

    name = "independent"
    role = "bound"
    spoken = "independent ranks"
    colour, marker = "#E69F00", "P"
    options = NoOptions
    uses_backend = False
    aggregates = False
    replicas_equal = False
    note = "No gradients are aggregated: every rank trains a separate model."

    def step_reason(self, case: Case) -> None:
        return None

    def build(self, job: Job, options: NoOptions) -> Replica:
        return LocalReplica(job)
