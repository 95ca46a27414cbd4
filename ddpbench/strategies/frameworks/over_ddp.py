"""Base class of strategies whose framework wraps the model in DistributedDataParallel."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel

from ddpbench.spec import Case, limits
from ddpbench.strategies.base import Strategy
from ddpbench.strategies.frameworks.installed import FRAMEWORKS, missing
from ddpbench.units import Unit

DEFAULT_CAP_MB = 25
"""Default bucket size of DDP and of Accelerate, in MiB."""


class OverDdpOptions(BaseModel, extra="forbid", frozen=True):
    """Options that frameworks pass on to DistributedDataParallel, with DDP's defaults, and the option `accumulate`."""

    accumulate: Annotated[int, limits.PARTS, Unit("parts")] = 1
    """Split each batch into this many parts and communicate only in the last part's backward."""
    gradient_as_bucket_view: bool = False
    """Let gradients share the memory of DDP's buckets instead of copying them."""
    static_graph: bool = False
    """Tell DDP that the graph never changes, so that it searches for no unused parameters."""
    find_unused_parameters: bool = False
    """Search the graph in every step for parameters that the loss does not reach. DDP then keeps its first buckets."""


OptionsT = TypeVar("OptionsT", bound=OverDdpOptions)


class OverDdp(Strategy[OptionsT]):
    """Training by a framework in which torch's DistributedDataParallel aggregates gradients."""

    algorithm = "all_reduce"
    schedule = "overlapped"
    uses_buckets = True
    precisions: ClassVar[tuple[str, ...]] = ("full", "bf16")
    """Values allowed for the setting `precision`. The framework, not ddpbench, enters autocast."""

    def check(self, case: Case) -> str | None:
        if reason := missing(self.framework):
            return reason
        options = self.options.model_validate(case.options)
        display = FRAMEWORKS[self.framework].display
        if case.precision not in self.precisions:
            return (
                f"{display} scales the loss of {case.precision} and unscales gradients within its own update, "
                f"which the proof cannot follow: set precision = {' or '.join(map(repr, self.precisions))}"
            )
        if options.accumulate > 1 and case.compute != "real":
            return "a replay's times are those of a whole batch: set accumulate = 1"
        if case.local_batch % options.accumulate:
            return f"accumulate = {options.accumulate} does not divide a local batch of {case.local_batch}"
        if case.shrink != 1 and case.bucket_cap_mb == "default":
            return (
                f"{display} gives no way to shrink DDP's first bucket of 1 MiB, as shrink asks for: set "
                "bucket_cap_mb to a number, or use ddp"
            )
        return None

    def step_reason(self, case: Case) -> str | None:
        display = FRAMEWORKS[self.framework].display
        return f"{display} makes forward, backward and update itself: it needs loss(), and no step()"


def bucket_cap(case: Case) -> dict[str, float]:
    """Return DDP's argument for the size of buckets in MiB, or an empty dict if the case uses DDP's default."""
    cap = case.bucket_cap_mb
    return {"bucket_cap_mb": cap / case.shrink} if isinstance(cap, int | float) else {}


def withheld_cap_reason(case: Case) -> str | None:
    """Return why the case's bucket size cannot be set through Accelerate (also in the HF Trainer), or None."""
    if case.bucket_cap_mb != DEFAULT_CAP_MB * case.shrink:
        return None
    return (
        f"Accelerate passes on only what differs from its default of {DEFAULT_CAP_MB} MiB, and DDP then begins "
        'with a bucket of 1 MiB: set bucket_cap_mb = "default", which is the same, or another number'
    )


def ddp_arguments(case: Case, options: OverDdpOptions) -> dict[str, float]:
    """Return the arguments that a framework passes to DDP: the bucket size, and options that are switched on."""
    switched = options.model_dump(
        include={"gradient_as_bucket_view", "static_graph", "find_unused_parameters"}
    )
    return {**bucket_cap(case), **{name: value for name, value in switched.items() if value}}
