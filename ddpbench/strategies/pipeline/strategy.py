"""The `pipeline` strategy: the model's layers in stages, one per rank, by torch.distributed.pipelining."""

from __future__ import annotations

from ddpbench.errors import first_reason
from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Replica, Strategy, replicas_reason
from ddpbench.strategies.pipeline import PipelineOptions


class Pipeline(Strategy[PipelineOptions]):
    """Model parallelism by layers. Each rank has consecutive layers, sends activations on and receives their gradients.

    Stages get equal numbers of layers, or one more in the first stages. With p equal stages and m microbatches, a stage
    is idle for a fraction (p-1)/(m+p-1) of a step in either order (`ddpbench.formulas.bubble_share`). A single rank
    only splits its batch.

    With `replicas` there are that many pipelines, each of neighbouring ranks. Each stage is wrapped in
    DistributedDataParallel over its ranks, whose buckets are sent in the last microbatch's backward.
    """

    name = "pipeline"
    shows_transfers_on_gpus = False
    colour, marker = "#F0E442", "h"
    options = PipelineOptions
    replicas_equal = False
    in_step = True
    whole_batches = True
    whole_state = False
    pieces = "stages"
    variants = ({"order": "1f1b"}, {"replicas": 2}, {"order": "1f1b", "replicas": 2})
    note = (
        "Every rank holds and trains only its own layers. Gradients are aggregated only with replicas, between "
        "equal stages. These all-reduces overlap the last microbatch's backward. In torch this backward ends, "
        "and the previous stage continues, only after the all-reduces."
    )

    def dealt(self, case: Case, rank: int) -> tuple[int, int]:
        return rank // self.piece_count(case), PipelineOptions.model_validate(case.options).replicas

    def parts(self, case: Case) -> int:
        options = PipelineOptions.model_validate(case.options)
        return options.replicas * options.microbatches

    def piece_count(self, case: Case) -> int:
        return case.world_size // PipelineOptions.model_validate(case.options).replicas

    def check(self, case: Case) -> str | None:
        options = PipelineOptions.model_validate(case.options)
        if reason := replicas_reason(case, options.replicas):
            return reason
        count, stages = options.microbatches, self.piece_count(case)
        share = case.global_batch // options.replicas
        whose = "a global batch" if options.replicas == 1 else "a pipeline's share"
        return first_reason(
            (case.compute != "real", "a replay has no layers to cut: use a workload that computes"),
            (
                case.backend == "gloo" and case.device == "cuda",
                "gloo sends no GPU memory from one rank to another: use nccl on GPUs",
            ),
            (
                case.precision != "full",
                'stages are cut out of the model without its autocast: set precision = "full"',
            ),
            (share % count, f"microbatches = {count} does not divide {whose} of {share}"),
            (
                options.order == "1f1b" and count < stages,
                f"1f1b needs a microbatch for each of its {stages} stages: set microbatches = {stages} or more",
            ),
        )

    def build(self, job: Job, options: PipelineOptions) -> Replica:
        from ddpbench.strategies.pipeline.replica import OneStageReplica, PipelineReplica

        return OneStageReplica(job, options) if job.world_size == 1 else PipelineReplica(job, options)
