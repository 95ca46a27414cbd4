"""A replica whose model a framework has prepared: the DDP inside, if there is one, is found and watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.ddp.reducers import Reducers

if TYPE_CHECKING:
    from torch import nn


class DdpInsideReplica(Replica):
    """A model in a framework's hands. Only its instrumented twin has a communication hook, as under bare DDP."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.bare: nn.Module = getattr(job.model, "without_autocast", job.model)
        """The model as a framework is to have it: autocast is the framework's to enter."""
        self.autocast = self.bare is not job.model
        """Whether the framework is to enter autocast: not in the proof's float64."""
        self.reducers = Reducers([], None)

    def watch(self, prepared: nn.Module, *, rebuilds: bool) -> None:
        """Find the DDP modules in what the framework made of the model; `rebuilds`: DDP orders its buckets anew once.

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
        """Return whether DDP's buckets are settled; so they are, after two steps, where there is no DDP."""
        return self.reducers.ready()

    def close(self) -> None:
        """Let go of the DDP inside; to be called once the framework has let go of it."""
        self.reducers.close()
