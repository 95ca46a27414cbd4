"""The `zero1` strategy: DDP with an optimizer whose state is divided among ranks (ZeroRedundancyOptimizer)."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, ModelFound, Replica, Strategy, memory_reason, parts_reason
from ddpbench.strategies.zero1 import Zero1Options


class Zero1(Strategy[Zero1Options]):
    """Each rank has the optimizer state for a part of the parameters, updates this part and sends it to all ranks.

    Stage 1 of Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC'20, but no
    parameter is split: one rank updates the entire largest one.
    """

    name = "zero1"
    display = "ZeRO-1"
    colour, marker = "#56B4E9", "X"
    options = Zero1Options
    algorithm = "all_reduce_broadcast"
    schedule = "overlapped"
    uses_buckets = True
    whole_state = False
    sends_parameters = True
    variants = (
        {"parameters_as_bucket_view": True},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    )
    note = (
        "Gradients are all-reduced whole, as under DDP, and the updated parameters are broadcast after the update: "
        "2(n-1)/n and about (n-1)/n times the parameters' bytes per step. Nothing hides the second part."
    )

    def check(self, case: Case) -> str | None:
        if case.compute != "real":
            return (
                "a replay's update takes the time of the whole model's, where zero1 updates a share of "
                "it: use a workload that computes"
            )
        return None

    def step_reason(self, case: Case) -> None:
        return None

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        return parts_reason(self.name, closure) if closure else None

    def found_reason(self, case: Case, found: ModelFound) -> str | None:
        if not found.are_mixed:
            return memory_reason(self.name, found)
        return (
            f"torch's ZeroRedundancyOptimizer takes parameters of one type, and this model trains {found.words}: use "
            f"ddp or master{found.or_cast}"
        )

    def build(self, job: Job, options: Zero1Options) -> Replica:
        from ddpbench.strategies.zero1.replica import Zero1Replica

        return Zero1Replica(job, options)
