"""The `hf_trainer` strategy: DDP as the Trainer of Hugging Face transformers sets it up and drives it."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Replica, Strategy
from ddpbench.strategies.frameworks.hf_trainer import HfTrainerOptions
from ddpbench.strategies.frameworks.installed import missing
from ddpbench.strategies.frameworks.over_ddp import withheld_cap_reason


class HfTrainer(Strategy[HfTrainerOptions]):
    """`train()` of a subclass of `transformers.Trainer` that computes the workload's loss.

    Logging, saving, evaluation, trackers, progress bars, clipping, the filter of NaN losses and schedules are off.
    ddpbench's batches replace the Trainer's DataLoader, and its seeding is undone. Callbacks, Accelerate's wrappers and
    features that cannot be turned off remain, such as the norm of all gradients (transformers 5). `precision = "bf16"`
    becomes the Trainer's `bf16=True`.
    """

    name = "hf_trainer"
    display = "HF Trainer"
    spoken = "the HF Trainer"
    colour, marker = "#B8860B", "h"
    options = HfTrainerOptions
    algorithm = "all_reduce"
    schedule = "overlapped"
    uses_buckets = True
    framework = "hf_trainer"
    imports = (
        "transformers.trainer",
        "accelerate",
        "deepspeed",
    )  # Accelerate imports DeepSpeed if it is installed
    variants = (
        {"accumulate": 2},
        {"find_unused_parameters": False},
    )
    note = (
        "By default the Trainer has DDP search for unused parameters. It computes the norm of all gradients in "
        "every step, whether it clips or not. A step's time outside forward, backward, communication and the "
        "optimizer is the Trainer's own and is not attributed. At one rank on the CPU the Trainer also wraps the "
        "model in DDP."
    )

    def check(self, case: Case) -> str | None:
        if reason := missing(self.framework):
            return reason
        options = HfTrainerOptions.model_validate(case.options)
        if case.precision not in ("full", "bf16"):
            return (
                f"the Trainer itself scales the loss of {case.precision}, which the proof cannot follow: set "
                "precision = 'full' or 'bf16'"
            )
        if case.compute != "real":
            return (
                "a replay has the time of the model only, not of a framework around it: use a workload "
                "that computes"
            )
        if case.local_batch % options.accumulate:
            return f"accumulate = {options.accumulate} does not divide a local batch of {case.local_batch}"
        return withheld_cap_reason(case)

    def step_reason(self, case: Case) -> str:
        return "the Trainer makes forward, backward and update itself: it needs loss(), and no step()"

    def build(self, job: Job, options: HfTrainerOptions) -> Replica:
        from ddpbench.strategies.frameworks.hf_trainer.replica import HfTrainerReplica

        return HfTrainerReplica(job, options)
