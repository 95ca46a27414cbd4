"""The `fsdp` strategy: torch's fully_shard (FSDP2), which shards parameters, gradients and optimizer state."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ddpbench.spec import Case
from ddpbench.strategies.base import (
    Job,
    ModelFound,
    Replica,
    Strategy,
    dense_reason,
    memory_reason,
    parts_reason,
    replicas_reason,
)
from ddpbench.strategies.fsdp import FsdpOptions
from ddpbench.units import series_of

OLDEST = (2, 9)
"""The oldest torch version whose fully_shard can sum instead of average, and whose collectives can be replaced."""


class Fsdp(Strategy[FsdpOptions]):
    """Sharding of parameters, gradients and optimizer state. A block's parameters are complete only while it computes.

    With `replicas`, neighbouring ranks form a replica and have the shards of one complete model. Parameters are
    gathered and gradients scattered within a replica. Gradients are then all-reduced between the ranks that have the
    same shard (HSDP).

    Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC'20, stage 3; Zhao et
    al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023.
    """

    name = "fsdp"
    shows_transfers_on_gpus = False
    display = "FSDP"
    colour, marker = "#009E73", "s"
    options = FsdpOptions
    algorithm = "reduce_scatter"
    schedule = "overlapped"
    replicas_equal = False
    in_step = True
    whole_state = False
    variants = ({"wrap": "whole"}, {"reshard_after_forward": False}, {"replicas": 2})
    note = (
        "gloo has no reduce-scatter: torch uses an all-reduce instead, after which each rank keeps its slice. A "
        "step then moves up to 4(n-1)/n times the parameters' bytes over each link (two all-gathers and the all-"
        "reduce) instead of 3(n-1)/n. On the CPU every collective blocks the rank, so that no communication "
        "overlaps with computation, as it does on a GPU's streams. The optimizer handles each DTensor separately, "
        "which for small ones takes longer than their update. With replicas, n is the number of ranks per replica, "
        "and each shard's gradients are all-reduced between replicas after their reduce-scatter."
    )

    def check(self, case: Case) -> str | None:
        if case.world_size == 1:
            return "fsdp has nothing to shard over one rank: set world_size to 2 or more"
        if case.compute != "real":
            return "a replay has no layers to gather parameters for: fsdp needs a workload that computes"
        if reason := replicas_reason(case, FsdpOptions.model_validate(case.options).replicas):
            return reason
        found = _torch_version()
        if found is not None and found < OLDEST:
            return f"fsdp needs torch {OLDEST[0]}.{OLDEST[1]} or later; {found[0]}.{found[1]} is installed"
        return None

    def step_reason(self, case: Case) -> None:
        return None

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        if closure:
            return parts_reason(self.name, closure)
        return dense_reason(self.name) if sparse else None

    def found_reason(self, case: Case, found: ModelFound) -> str | None:
        whole = FsdpOptions.model_validate(case.options).wrap == "whole"
        if found.dropped_blocks:
            return (
                f"the model leaves out {series_of(found.dropped_blocks)} in some steps, but fsdp's ranks gather "
                "every block, and reduce its gradients, together. Ranks that leave out different blocks would "
                "hang, or train wrong weights: use master, or ddp with options.ddp.find_unused_parameters = true"
            )
        if found.empty:
            name = found.empty[0].removeprefix("network.")
            return (
                f"the trained parameter {name} has no elements, and FSDP cannot reduce its gradient: set its "
                "requires_grad = False, or use ddp or master"
            )
        if not found.are_mixed or not (whole or found.mixed_within_blocks):
            return memory_reason(self.name, found)
        return (
            f"fsdp needs parameters of one type in each part that it shards, and this model trains {found.words} in "
            f"one part: use ddp or master{found.or_cast}"
        )

    def build(self, job: Job, options: FsdpOptions) -> Replica:
        from ddpbench.strategies.fsdp.replica import FsdpReplica

        return FsdpReplica(job, options)


def _torch_version() -> tuple[int, int] | None:
    try:
        major, minor, *_ = version("torch").split(".")
        return int(major), int(minor)
    except (PackageNotFoundError, ValueError):
        return None
