"""The `ddp` strategy: torch's DistributedDataParallel, with a choice of algorithm, schedule and compression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpbench.collectives import TABLE as COLLECTIVES
from ddpbench.collectives import is_collective
from ddpbench.spec import Case
from ddpbench.strategies.base import Job, ModelFound, Promise, Replica, Strategy, dense_reason
from ddpbench.strategies.ddp import DdpOptions

if TYPE_CHECKING:
    pass


class Ddp(Strategy[DdpOptions]):
    """DistributedDataParallel, which all-reduces gradients in buckets while backward continues (Li et al., VLDB 2020).

    Settings can choose a different algorithm, or send the same buckets only after backward.
    """

    name = "ddp"
    role = "reference"
    display = "DDP"
    colour, marker = "#0072B2", "o"
    options = DdpOptions
    algorithm = "all_reduce"
    schedule = "overlapped"
    uses_buckets = True
    algorithms = ("all_reduce", *COLLECTIVES)
    own_algorithms = True
    schedules = ("overlapped", "after_backward")
    variants = (
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"accumulate": 2},
        {"compression": "fp16"},
        {"compression": "bf16"},
        {"compression": "powersgd"},
        {"compression": "powersgd", "matrix_approximation_rank": 4},
    )

    def check(self, case: Case) -> str | None:
        options = DdpOptions.model_validate(case.options)
        if reason := accumulate_reason(case):
            return reason
        if is_collective(case.algorithm) and case.device == "cuda":
            return (
                f"{case.algorithm} is made of point-to-point messages between ranks on the CPU, over gloo: on GPUs "
                'set algorithm = "all_reduce"'
            )
        if options.compression == "powersgd":
            return _powersgd_reason(case)
        return None

    def step_reason(self, case: Case) -> str | None:
        options = DdpOptions.model_validate(case.options)
        if options.accumulate > 1:
            return "the class's step() decides itself whether to accumulate: leave out accumulate"
        return super().step_reason(case) if options.compression == "powersgd" else None

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        if sparse and is_collective(case.algorithm):
            return dense_reason(case.algorithm)
        compression = DdpOptions.model_validate(case.options).compression
        return dense_reason(f"compression = {compression!r}") if sparse and compression != "none" else None

    def found_reason(self, case: Case, found: ModelFound) -> str | None:
        compression = DdpOptions.model_validate(case.options).compression
        if compression == "powersgd" and set(found.trained) - {"float32", "float64"}:
            return (
                "PowerSGD orthogonalizes in the gradients' own type, float32 or float64, and this model trains "
                f"{found.words}: set another compression{found.or_cast}"
            )
        return None

    def promise(self, options: DdpOptions) -> Promise:
        return "delayed" if options.compression == "powersgd" else "gradients"

    def build(self, job: Job, options: DdpOptions) -> Replica:
        if options.compression == "powersgd":
            from ddpbench.strategies.ddp.powersgd import PowerSgdReplica

            return PowerSgdReplica(job, options)
        from ddpbench.strategies.ddp.replica import DdpReplica

        return DdpReplica(job, options)


def accumulate_reason(case: Case) -> str | None:
    """Explain in words why a rank's batch cannot be split into the parts that `accumulate` asks for, or return None."""
    parts = int(case.options.get("accumulate", 1))
    if parts > 1 and case.compute != "real":
        return "a replay's times are those of a whole batch: set accumulate = 1"
    if case.local_batch % parts:
        return f"accumulate = {parts} does not divide a local batch of {case.local_batch}"
    return None


def _powersgd_reason(case: Case) -> str | None:
    if case.dtype == "bfloat16":
        return (
            "PowerSGD orthogonalizes in the gradients' own type, and bfloat16 has too few digits to keep the "
            'omitted remainder: set dtype = "float32"'
        )
    if case.precision == "fp16":
        return (
            "under fp16 autocast gradients may be infinite, and PowerSGD would keep the infinity for ever: set "
            'precision = "bf16" or "full"'
        )
    if is_collective(case.algorithm):
        return f'PowerSGD has its own all-reduces and no {case.algorithm}: set algorithm = "all_reduce"'
    return None
