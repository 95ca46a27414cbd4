"""The `ray_train` strategy: Ray Train's TorchTrainer and `prepare_model`, as its documentation teaches them."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Replica, Strategy
from ddpbench.strategies.frameworks.installed import missing
from ddpbench.strategies.frameworks.ray_train import RayTrainOptions


class RayTrain(Strategy[RayTrainOptions]):
    """Ray's TorchTrainer starts the ranks and forms their process group; `prepare_model` wraps the model in DDP.

    The loop is ddpbench's, as Ray Train leaves it to the user. `prepare_data_loader` is left out, so that all
    strategies get the same samples. Nothing is reported to Ray or saved by Ray, and its metrics are off. Its controller
    checks the workers every two seconds, as always.
    """

    name = "ray_train"
    display = "Ray Train"
    colour, marker = "#0E7490", "8"
    options = RayTrainOptions
    algorithm = "all_reduce"
    schedule = "overlapped"
    uses_buckets = True
    framework = "ray_train"
    launcher = "ray"
    note = (
        "Ray Train itself starts this strategy's ranks, even if another launcher starts those of other "
        "strategies, and Ray's servers run on the same cores"
    )
    variants = (
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"accumulate": 2},
    )

    def check(self, case: Case) -> str | None:
        if case.compute != "real":
            return (
                "a replay computes nothing that Ray Train could wrap: use ddp, or train the workload itself"
            )
        parts = RayTrainOptions.model_validate(case.options).accumulate
        if case.local_batch % parts:
            return f"accumulate = {parts} does not divide a local batch of {case.local_batch}"
        return missing("ray_train")

    def step_reason(self, case: Case) -> str | None:
        if RayTrainOptions.model_validate(case.options).accumulate > 1:
            return "the class's step() decides itself whether to accumulate: leave out accumulate"
        return None

    def build(self, job: Job, options: RayTrainOptions) -> Replica:
        from ddpbench.strategies.ddp import DdpOptions
        from ddpbench.strategies.frameworks.ray_train.replica import RayTrainReplica

        return RayTrainReplica(job, DdpOptions(**options.model_dump()))
