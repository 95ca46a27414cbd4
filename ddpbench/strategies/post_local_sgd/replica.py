"""A rank's replica under post-local SGD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from ddpbench.strategies.base import CannotTrainError, Job, PeriodicReplica
from ddpbench.strategies.ddp import DdpSwitches
from ddpbench.strategies.ddp.hooks import NEVER, Summed
from ddpbench.strategies.ddp.replica import buffers_stay
from ddpbench.strategies.post_local_sgd import PostLocalSgdOptions

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

    from ddpbench.measure.clock import Mark


class PostLocalSgdReplica(PeriodicReplica):
    """A model under DDP with torch's post-local SGD hook. torch's averager averages parameters after some updates.

    Once ranks train separately, the hook sends nothing, or only averages within nodes.
    """

    notes_update = True

    def __init__(self, job: Job, options: PostLocalSgdOptions) -> None:
        super().__init__(job)
        _check_contiguous(job.model)
        self._options = options
        self._ddp: DistributedDataParallel | None = DistributedDataParallel(
            job.model, **options.model_dump(include=set(DdpSwitches.model_fields)), **buffers_stay()
        )
        node = job.case.ranks_per_node
        self._subgroup: dist.ProcessGroup | None = None
        self._groups = 1
        if options.within_nodes and 1 < node < job.world_size:
            self._subgroup, _ = dist.new_subgroups(group_size=node, timeout=NEVER)  # type: ignore[no-untyped-call]
            self._groups = job.world_size // node
        self._state = PostLocalSGDState(  # type: ignore[no-untyped-call]
            process_group=None,
            subgroup=self._subgroup,
            start_localSGD_iter=options.start_local_sgd_iter,
            post_local_gradient_allreduce=self._subgroup is not None,
        )
        self._ddp.register_comm_hook(None, lambda _state, bucket: self._aggregate(bucket))
        self._averager = PeriodicModelAverager(options.period, warmup_steps=options.start_local_sgd_iter)
        self._buckets = 0

    def due(self, step: int) -> tuple[list[list[int]], bool]:
        since = step - self._options.start_local_sgd_iter
        averages = since >= 0 and since % self._options.period == 0
        size = self.job.world_size
        if since >= 0:
            size = self.job.case.ranks_per_node if self._subgroup is not None else 1
        ranks = range(self.job.world_size)
        return [list(ranks[first : first + size]) for first in range(0, self.job.world_size, size)], averages

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        assert self._ddp is not None
        recorder = self.job.recorder
        self._buckets = 0
        with recorder.span("forward"):
            loss = self.job.loss(self._ddp(inputs), targets)
        start = recorder.mark()
        self._last_start: Mark = None
        loss.backward()  # type: ignore[no-untyped-call]
        end = recorder.mark()
        if self._last_start is None:
            recorder.add_span("backward", start, end)
        else:
            recorder.add_span("backward", start, self._last_start)
            recorder.add_span("synchronize", self._last_start, end)
        return loss.detach()

    def apply(self) -> None:
        recorder = self.job.recorder
        with recorder.span("optimizer"):
            self.optimizer.step()
        _, averages = self.due(self._averager.step)
        start = recorder.mark()
        self._averager.average_parameters(self.optimizer.param_groups)  # only parameters that have a gradient
        if averages:
            end = recorder.mark()
            recorder.add_span("synchronize", start, end)
            size = sum(
                each.numel() * each.element_size()
                for each in self.job.model.parameters()
                if each.grad is not None
            )
            number = self._buckets * self._groups
            recorder.add_transfer(bucket=number, op="all_reduce", size=size, start=start, end=end)
        self.optimizer.zero_grad(set_to_none=True)

    def ready(self) -> bool:
        """Return whether ranks have begun to train separately."""
        return self._averager.step > self._options.start_local_sgd_iter

    def close(self) -> None:
        if self._ddp is None:
            return
        self._ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        self._ddp = None
        if self._subgroup is not None:
            dist.destroy_process_group(self._subgroup)
            self._subgroup = None
        for parameter in self.job.model.parameters():
            parameter.grad = None

    def _aggregate(self, bucket: GradBucket) -> Summed:
        recorder, number = self.job.recorder, bucket.index()
        buffer = bucket.buffer()
        apart = self._state.iter >= self._state.start_localSGD_iter
        sends = not apart or self._subgroup is not None
        self._buckets = max(self._buckets, number + 1)
        ranks = None
        if apart and self._subgroup is not None:  # each node's transfers have distinct numbers
            ranks = self.job.case.ranks_per_node
            number = number * self._groups + self.job.rank // ranks
        start = recorder.mark()
        averaged = post_localSGD_hook(self._state, bucket)
        if not sends or not recorder.active:
            return averaged
        self._last_start = start

        def arrived(future: Summed) -> torch.Tensor:
            size = buffer.numel() * buffer.element_size()
            recorder.add_transfer(
                bucket=number, op="all_reduce", size=size, start=start, end=recorder.mark(), ranks=ranks
            )
            return future.value()

        noted: Summed = averaged.then(arrived)
        return noted


def _check_contiguous(model: torch.nn.Module) -> None:
    """Check that trained weights are contiguous, unlike in channels_last.

    torch's averager makes them contiguous, and DDP, which reads gradients by current strides, would then mix them up.

    Raises:
        CannotTrainError: a trained weight is not contiguous.
    """
    bare: torch.nn.Module = getattr(model, "without_autocast", model)
    found = [
        name.removeprefix("network.")
        for name, each in bare.named_parameters()
        if each.requires_grad and not each.is_contiguous()
    ]
    if not found:
        return
    more = f" and {len(found) - 1} more are" if found[1:] else " is"
    raise CannotTrainError(
        f"torch's averager makes weights contiguous ({found[0]}{more} not), after which DDP gives their "
        "gradients in the wrong order: make them contiguous (no channels_last), or use another strategy"
    )
