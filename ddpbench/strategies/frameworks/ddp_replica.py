"""A replica whose model a framework prepares, with records of the transfers of its DDP modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.ddp.reducers import Reducers

if TYPE_CHECKING:
    from torch import nn


class DdpInsideReplica(Replica):
    """A model that a framework trains. A communication hook is added only if steps are recorded, as in `ddp`."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.bare: nn.Module = getattr(job.model, "without_autocast", job.model)
        """The model for the framework, without ddpbench's autocast, because the framework enters autocast itself."""
        self.autocast = self.bare is not job.model
        """True if the framework has to enter autocast. It is false in a proof in float64."""
        self.reducers = Reducers([], None)

    def watch(self, prepared: nn.Module, *, rebuilds: bool) -> None:
        """Find the DDP modules, if any, in the model that the framework prepared.

        `rebuilds` is true if DDP changes the order of its buckets once.
        """
        from torch.nn.parallel import DistributedDataParallel

        from ddpbench.strategies.ddp.hooks import BucketHook

        found = [module for module in prepared.modules() if isinstance(module, DistributedDataParallel)]
        hook = BucketHook(self.job) if found and self.job.recorder.active else None
        self.reducers = Reducers(found, hook, rebuilds=rebuilds)

    def backward(self, backward: Callable[[], Any]) -> None:
        """Call the framework's last backward of a step, which aggregates gradients, and record its spans."""
        self.reducers.backward(self.job.recorder, backward)

    def bucket_bytes(self) -> tuple[int, ...] | None:
        return self.reducers.bucket_bytes()

    def ready(self) -> bool:
        """Return whether DDP's buckets are final. Without DDP, return whether at least two steps were made."""
        return self.reducers.ready()

    def close(self) -> None:
        """Release the DDP modules. Call this after the framework has released them."""
        self.reducers.close()
