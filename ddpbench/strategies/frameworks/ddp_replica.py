"""A replica whose model a framework has prepared: finds and watches the DDP inside, if there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.ddp.reducers import Reducers

if TYPE_CHECKING:
    from torch import nn


class DdpInsideReplica(Replica):
    """A model that a framework trains. Only the instrumented replica has a communication hook, as under bare DDP."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.bare: nn.Module = getattr(job.model, "without_autocast", job.model)
        """The model for the framework, which enters autocast itself."""
        self.autocast = self.bare is not job.model
        """True if the framework enters autocast: not in the proof's float64."""
        self.reducers = Reducers([], None)

    def watch(self, prepared: nn.Module, *, rebuilds: bool) -> None:
        """Find the DDP modules in the model as the framework prepared it; `rebuilds`: DDP changes their buckets'
        order once.

        A framework may have left a single process's model as it is: then there is nothing to watch.
        """
        from torch.nn.parallel import DistributedDataParallel

        from ddpbench.strategies.ddp.hooks import BucketHook

        found = [module for module in prepared.modules() if isinstance(module, DistributedDataParallel)]
        hook = BucketHook(self.job) if found and self.job.recorder.active else None
        self.reducers = Reducers(found, hook, rebuilds=rebuilds)

    def backward(self, backward: Callable[[], Any]) -> None:
        """Make a step's last backward, the framework's, which aggregates; and note its spans."""
        self.reducers.backward(self.job.recorder, backward)

    def bucket_bytes(self) -> tuple[int, ...] | None:
        return self.reducers.bucket_bytes()

    def ready(self) -> bool:
        """Return whether DDP's buckets are final; without DDP, True after two steps."""
        return self.reducers.ready()

    def close(self) -> None:
        """Release the DDP inside; call it after the framework has released it."""
        self.reducers.close()
