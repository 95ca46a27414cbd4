"""The `accelerate` strategy: a plain training loop with Hugging Face Accelerate."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.frameworks.over_ddp import OverDdp, OverDdpOptions, withheld_cap_reason


class AccelerateOptions(OverDdpOptions, extra="forbid", frozen=True):
    """Options that users of Accelerate set, with its defaults."""


class Accelerate(OverDdp[AccelerateOptions]):
    """Training with `accelerator.prepare(model, optimizer)`, `backward(loss)` and `accumulate(model)`.

    The loop is ddpbench's. `prepare(dataloader)` is left out, so that every strategy trains on the same samples in the
    same order. Trackers and checkpoints are off, as by default. With one process, DDP aggregates in every part.
    `precision = "bf16"` becomes Accelerate's `mixed_precision`.
    """

    name = "accelerate"
    display = "Accelerate"
    colour, marker = "#009E73", "D"
    options = AccelerateOptions
    framework = "accelerate"
    imports = ("accelerate",)
    variants = (
        {"accumulate": 2},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    )
    note = (
        "Accelerate prepares the model and the optimizer, but not the batches: it does not shard the dataloader, "
        "so that all strategies see the same samples. At one rank it wraps the model in DDP on a CPU, and leaves "
        "the model as it is on a GPU."
    )

    def check(self, case: Case) -> str | None:
        if reason := super().check(case):
            return reason
        return withheld_cap_reason(case)

    def build(self, job: Job, options: AccelerateOptions) -> Replica:
        from ddpbench.strategies.frameworks.accelerate.replica import AccelerateReplica

        return AccelerateReplica(job, options)
