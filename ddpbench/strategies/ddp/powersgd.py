"""DDP with torch's PowerSGD, which sends gradients as low-rank matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from ddpbench.collectives.background import Background
from ddpbench.measure.clock import Mark
from ddpbench.strategies.base import CompensatedReplica, Job
from ddpbench.strategies.ddp import DdpOptions
from ddpbench.strategies.ddp.hooks import NEVER, BucketHook, Summed
from ddpbench.strategies.ddp.replica import DdpReplica

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

EPSILON = 1e-8
"""Small number that prevents NaN when a gradient of zeros is orthogonalized."""


class PowerSgdHook(BucketHook):
    """Compresses a bucket's matrices to a low rank, and adds the remaining error to the next step's gradients.

    Vogels, Karimireddy, Jaggi, NeurIPS 2019. A bucket takes three successive all-reduces. With gloo, two buckets at
    once would hang, since their callbacks would wait for one another in its two worker threads. On the CPU a thread
    therefore runs the buckets in turn, in parallel with backward.
    """

    def __init__(self, job: Job, options: DdpOptions) -> None:
        super().__init__(job)
        self._scale = 1.0  # torch's hook does the division
        if self._group is None:
            self._group = dist.new_group(timeout=NEVER)
        self.state = PowerSGDState(
            process_group=self._group,
            matrix_approximation_rank=options.matrix_approximation_rank,
            start_powerSGD_iter=options.start_powersgd_iter,
            orthogonalization_epsilon=EPSILON,
        )
        self._background = None if job.device.type == "cuda" else Background()
        self._parameters: dict[int, list[torch.Tensor]] = {}

    @property
    def compresses(self) -> bool:
        """True if at least one step has been compressed."""
        return int(self.state.iter) > int(self.state.start_powerSGD_iter)

    def close(self) -> None:
        """End the thread, but keep the process group until all groups are destroyed.

        torch's callbacks run in the group's threads and refer to it; a thread with the last reference would wait for
        itself.
        """
        if self._background is not None:
            self._background.close()

    def kept(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each parameter with the part of its gradients that compression has left out so far."""
        found = []
        for number, memory in self.state.error_dict.items():
            parameters = self._parameters[number]
            parts = torch.split(memory, [parameter.numel() for parameter in parameters])
            found += [(each, part.view_as(each)) for each, part in zip(parameters, parts, strict=True)]
        return found

    def _sent(self, bucket: GradBucket, buffer: torch.Tensor) -> Summed:
        recorder, state, number = self._recorder, self.state, bucket.index()
        self._parameters[number] = bucket.parameters()
        start = self.last_start = recorder.mark()

        def begun() -> tuple[Summed, int]:
            """Begin the transfer; return its future, and the count of numbers that it sends."""
            before = int(state.total_numel_after_compression)
            plain = state.iter < state.start_powerSGD_iter
            sent: Summed = powerSGD_hook(state, bucket)
            return sent, buffer.numel() if plain else int(state.total_numel_after_compression) - before

        def ended(elements: int, value: torch.Tensor, turned: Mark = None) -> torch.Tensor:
            size, end = elements * buffer.element_size(), recorder.mark()
            recorder.add_transfer(bucket=number, op="powersgd", size=size, start=start, end=end, begun=turned)
            return value

        if self._background is None:
            sent, elements = begun()
            noted: Summed = sent.then(lambda future: ended(elements, future.value()))
            return noted

        def act() -> torch.Tensor:
            turned = recorder.mark()
            sent, elements = begun()
            return ended(elements, sent.wait(), turned)

        return self._background.put(act)


class PowerSgdReplica(DdpReplica, CompensatedReplica):
    """A model under DDP with PowerSGD. The first steps are not compressed, because DDP rebuilds its buckets in them."""

    def __init__(self, job: Job, options: DdpOptions) -> None:
        super().__init__(job, options)
        self.exact_steps = options.start_powersgd_iter

    def _make_hook(self, job: Job, options: DdpOptions) -> BucketHook:
        self._power = PowerSgdHook(job, options)
        return self._power

    def ready(self) -> bool:
        """Return whether buckets are final and steps are compressed."""
        return super().ready() and self._power.compresses

    def kept(self) -> dict[str, torch.Tensor]:
        names: dict[torch.Tensor, str] = {each: name for name, each in self.job.model.named_parameters()}
        return {names[parameter]: part for parameter, part in self._power.kept()}
