"""The `branches` strategy: each rank computes one of a model's branches; rank 0 also has the head that joins them."""

from __future__ import annotations

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, NoOptions, Replica, Strategy


class Branches(Strategy[NoOptions]):
    """Model parallelism in which every rank computes its branch of the model on the full batch.

    Rank 0 gets all outputs, computes the head and the loss, and sends the outputs' gradients back. Bytes grow with the
    batch, not with the parameters, whose gradients are not exchanged.
    """

    name = "branches"
    shows_transfers_on_gpus = False
    colour, marker = "#CC79A7", ">"
    options = NoOptions
    replicas_equal = False
    in_step = True
    whole_batches = True
    whole_state = False
    pieces = "branches"
    note = "Every rank holds and trains only its own branch, and rank 0 also the head: no gradients are aggregated."

    def parts(self, case: Case) -> int:
        return 1

    def check(self, case: Case) -> str | None:
        if case.compute != "real":
            return "a replay has no branches: use a workload that computes"
        if case.backend == "gloo" and case.device == "cuda":
            return "gloo sends no GPU memory from one rank to another: use nccl on GPUs"
        if case.precision != "full":
            return 'branches are cut out of the model without its autocast: set precision = "full"'
        return None

    def build(self, job: Job, options: NoOptions) -> Replica:
        from ddpbench.strategies.branches.replica import BranchesReplica

        return BranchesReplica(job)
