"""The `deepspeed` strategy: DeepSpeed's engine around the model and the optimizer."""

from __future__ import annotations

from ddpbench.errors import first_reason
from ddpbench.spec import OWN_TYPES, Case
from ddpbench.strategies.base import Job, ModelFound, Replica, Strategy, dense_reason, memory_reason
from ddpbench.strategies.frameworks.deepspeed import DeepSpeedOptions
from ddpbench.strategies.frameworks.installed import missing


class DeepSpeed(Strategy[DeepSpeedOptions]):
    """`deepspeed.initialize` with the workload's optimizer; then `engine(inputs)`, `backward(loss)` and `step()`.

    Clipping, schedules, progress lines, timers, monitors and the loader are off. C++ operations are not compiled, so
    the all-reduce over shared memory, which only inference uses, is missing. Rajbhandari et al., "ZeRO: memory
    optimizations toward training trillion parameter models", SC'20.
    """

    name = "deepspeed"
    shows_transfers_on_gpus = False
    display = "DeepSpeed"
    colour, marker = "#7A4988", "d"
    options = DeepSpeedOptions
    algorithm = "zero"
    schedule = "after_backward"
    whole_state = False
    framework = "deepspeed"
    imports = (
        "deepspeed",
        "deepspeed.runtime.zero.muon.muon_optimizer",
    )  # stages 1 and 2 import the second when they reduce
    variants = (
        {"zero_stage": 0},
        {"zero_stage": 2},
        {"zero_stage": 2, "overlap_comm": True, "reduce_bucket_size": 10_000},
        {"contiguous_gradients": False},
        {"accumulate": 2},
        {"zero_stage": 0, "accumulate": 2},
        {"zero_stage": 2, "accumulate": 2},
    )
    note = (
        "DeepSpeed has no communication hooks. On the CPU its collectives block the rank, and are recorded where "
        "DeepSpeed calls torch's. On GPUs they run on separate streams and are not recorded. Stages 1 and 2 "
        "all-reduce buckets, of which each rank keeps a slice, gather parameters after the update, and compute "
        "the norm of all gradients in every step, clipped or not. float64 is not proved: DeepSpeed updates "
        "weights in float32."
    )

    def check(self, case: Case) -> str | None:
        if reason := missing(self.framework):
            return reason
        options = DeepSpeedOptions.model_validate(case.options)
        return first_reason(
            (
                case.precision != "full",
                (
                    "ddpbench supports neither DeepSpeed's mixed precision nor autocast within its "
                    f'engine: set precision = "full" instead of {case.precision!r}'
                ),
            ),
            (
                case.dtype not in ("float32", OWN_TYPES),
                f'DeepSpeed updates weights in float32: set dtype = "float32" instead of {case.dtype!r}',
            ),
            (
                case.compute != "real",
                (
                    "a replay has the time of the model only, not of a framework around it: use a workload "
                    "that computes"
                ),
            ),
            (
                case.local_batch % options.accumulate,
                f"accumulate = {options.accumulate} does not divide a local batch of {case.local_batch}",
            ),
            (
                options.zero_stage == 0 and options.overlap_comm,
                "stage 0 reduces after backward: leave out overlap_comm, or set zero_stage = 2",
            ),
        )

    def float64_reason(self, options: DeepSpeedOptions) -> str:
        return "DeepSpeed sends gradients and updates weights in float32, so float64 is not compared"

    def step_reason(self, case: Case) -> str:
        return "DeepSpeed's engine makes backward and update itself: it needs loss(), and no step()"

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        return dense_reason(self.name) if sparse else None

    def found_reason(self, case: Case, found: ModelFound) -> str | None:
        if found.trained == ("float32",):
            return memory_reason(self.name, found)
        return f'DeepSpeed updates weights in float32, and this model trains {found.words}: set dtype = "float32"'

    def build(self, job: Job, options: DeepSpeedOptions) -> Replica:
        from ddpbench.strategies.frameworks.deepspeed.replica import DeepSpeedReplica

        return DeepSpeedReplica(job, options)
