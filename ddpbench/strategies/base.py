"""What a strategy is: options and a check that need no torch, and a replica that trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel

from ddpbench.spec import Case, NoOptions

if TYPE_CHECKING:
    import torch

    from ddpbench.measure.recorder import Recorder

OptionsT = TypeVar("OptionsT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """All that a strategy needs to build a rank's replica.

    `model` is on `device` already and equal on all ranks; `loss(outputs, targets)` is a mean over samples;
    `make_optimizer` builds the workload's optimizer for any parameters. The default process group exists
    when `distributed` is true, and never belongs to anyone but the strategy.
    """

    case: Case
    model: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    make_optimizer: Callable[[Any], torch.optim.Optimizer]
    device: torch.device
    rank: int
    local_rank: int
    world_size: int
    distributed: bool
    recorder: Recorder
    """Where spans and transfers are noted; in timed steps one that notes nothing (`recorder.active` is
    false). A strategy whose noting costs more than a function call installs it only when it is active."""


class Replica(ABC):
    """A model under a strategy, in one rank. One step is `gradients_of(batch)`, then `apply()`."""

    unit_roundoff: float = 0.0
    """What aggregation itself rounds gradients to, relative: 2^-11 where they are sent in fp16. 0: as they are."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.optimizer = job.make_optimizer(job.model.parameters())

    @abstractmethod
    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Forward, backward and aggregation of one batch; returns the rank's loss, detached.

        Afterwards every parameter's `.grad` holds what the optimizer shall use. Notes its parts with
        `job.recorder.span(...)`.
        """

    def apply(self) -> None:
        """Updates the parameters and drops the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> list[torch.Tensor]:
        """The aggregated gradients after `gradients_of`, in the order of `model.parameters()`."""
        return [p.grad for p in self.job.model.parameters() if p.grad is not None]

    def bucket_bytes(self) -> Sequence[int] | None:
        """Sizes of the gradient buckets as last used, bytes; None where the strategy has none."""
        return None

    def ready(self) -> bool:
        """Whether one-time work (such as rebuilding buckets) is done, so that steps are alike from here."""
        return True

    def close(self) -> None:
        """Lets go of hooks on the model and of threads, so that another replica may be built on it."""
        return


class Strategy(ABC, Generic[OptionsT]):
    """A way to train on several devices. One file each, and one line in `ddpbench.strategies.TABLE`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    options: type[OptionsT]
    algorithm: ClassVar[str] = ""
    """How gradients are aggregated: `all_reduce`, `master`, ... Empty: they are not."""
    schedule: ClassVar[Literal["", "overlapped", "after_backward"]] = ""
    algorithms: ClassVar[tuple[str, ...]] = ()
    """All that a case may ask for with the setting `algorithm`; empty: there is no choice."""
    schedules: ClassVar[tuple[str, ...]] = ()
    """All that a case may ask for with the setting `schedule`; empty: there is no choice."""
    uses_buckets: ClassVar[bool] = False
    uses_backend: ClassVar[bool] = True
    one_process: ClassVar[bool] = False
    """All `world_size` devices belong to one process."""
    aggregates: ClassVar[bool] = True
    """Gradients after a step equal those of one process over all ranks' shards; proved before timing."""
    replicas_equal: ClassVar[bool] = True
    """All ranks' parameters are bit-equal after any number of steps; checked at the end."""
    note: ClassVar[str] = ""
    """What a report must say beside the strategy's numbers."""

    def check(self, case: Case) -> str | None:
        """Why the strategy cannot run this case, or None. Called without torch."""
        return None

    @abstractmethod
    def build(self, job: Job, options: OptionsT) -> Replica:
        """The rank's replica. Import torch here."""


__all__ = ["Job", "NoOptions", "Replica", "Strategy"]
