"""The `lightning` strategy: Lightning's Trainer, or its Fabric, over DistributedDataParallel."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.frameworks.lightning import LightningOptions
from ddpbench.strategies.frameworks.over_ddp import OverDdp


class Lightning(OverDdp[LightningOptions]):
    """`Trainer.fit` of a LightningModule with automatic optimization, or `Fabric.setup` and `fabric.backward`.

    Both get Lightning's `DDPStrategy`, even with one rank. Logger, checkpoints, progress bar, model summary, sanity
    validation and the replacement of the sampler are off, because batches are ddpbench's. `precision = "bf16"` becomes
    Lightning's `"bf16-mixed"`.

    The Trainer's loop is run half a step at a time (`frameworks/inverted.py`). The forward span is `training_step`,
    including the loss. The Trainer's work between the parts of a step is in no span.
    """

    name = "lightning"
    display = "Lightning"
    colour, marker = "#D55E00", "H"
    options = LightningOptions
    framework = "lightning"
    imports = ("lightning.pytorch",)
    variants = (
        {"accumulate": 2},
        {"barebones": True},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"api": "fabric"},
        {"api": "fabric", "accumulate": 2},
    )
    note = (
        "Under the Trainer, the time of Lightning's own loop between the parts of a step is not attributed. "
        "Before each batch the loop broadcasts from rank 0 whether to stop: a transfer of 8 bytes, in which "
        "ranks wait for rank 0."
    )

    def check(self, case: Case) -> str | None:
        if reason := super().check(case):
            return reason
        options = LightningOptions.model_validate(case.options)
        if options.barebones and options.api == "fabric":
            return "barebones is an option of the Trainer's: leave it out, or set api = 'trainer'"
        return None

    def build(self, job: Job, options: LightningOptions) -> Replica:
        if options.api == "fabric":
            from ddpbench.strategies.frameworks.lightning.fabric_replica import FabricReplica

            return FabricReplica(job, options)
        from ddpbench.strategies.frameworks.lightning.trainer_replica import TrainerReplica

        return TrainerReplica(job, options)
