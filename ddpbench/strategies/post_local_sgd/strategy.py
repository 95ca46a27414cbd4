"""The `post_local_sgd` strategy: ranks train apart and average their parameters every few steps."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, ModelFound, Promise, Replica, Strategy, memory_reason
from ddpbench.strategies.post_local_sgd import PostLocalSgdOptions


class PostLocalSgd(Strategy[PostLocalSgdOptions]):
    """torch's post-local SGD (Lin, Stich, Patel, Jaggi, ICLR 2020). Parameters are averaged once per `period` steps.

    Buffers such as BatchNorm's statistics are not shared between ranks. Sending buffers in every step would
    cost the time that is saved by averaging parameters less often.
    """

    name = "post_local_sgd"
    display = "local SGD"
    colour, marker = "#56B4E9", "*"
    options = PostLocalSgdOptions
    algorithm = "all_reduce"
    schedule = "after_backward"
    replicas_equal = False
    variants = (
        {"period": 2, "start_local_sgd_iter": 0},
        {"static_graph": True},
        {"find_unused_parameters": True},
    )
    note = (
        "Between two averagings ranks train apart. The path of training, and the loss that it reaches, differ "
        "from those of synchronous training, so throughput alone does not compare the two."
    )

    def promise(self, options: PostLocalSgdOptions) -> Promise:
        return "averaged"

    def period(self, options: PostLocalSgdOptions) -> int:
        return options.period

    def check(self, case: Case) -> str | None:
        if case.world_size == 1:
            return "one rank has no other to average with: set world_size to 2 or more"
        if case.precision == "fp16":
            return (
                "under fp16 autocast, ranks that train apart would skip different updates, and then wait for one "
                'another: set precision = "bf16" or "full"'
            )
        if case.compute != "real":
            return "a replay's update has a profiled time, in which no averaging is: use real computation"
        return None

    def found_reason(self, case: Case, found: ModelFound) -> str | None:
        return memory_reason(self.name, found)

    def build(self, job: Job, options: PostLocalSgdOptions) -> Replica:
        from ddpbench.strategies.post_local_sgd.replica import PostLocalSgdReplica

        return PostLocalSgdReplica(job, options)
