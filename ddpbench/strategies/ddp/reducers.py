"""A replica's DDP modules: their buckets, whether these are final, and the hook that notes transfers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from ddpbench.measure.clock import Mark
    from ddpbench.measure.recorder import Recorder
    from ddpbench.strategies.ddp.hooks import BucketHook

REBUILD_BY_STEP = 4
"""Last step in which a reducer may rebuild its buckets. Without find_unused_parameters they are rebuilt in the second
forward pass and the logger reports it in the third; a reducer that has not done so by the end of this step never
will."""


class Reducers:
    """The DDP modules of a replica, made by the replica or by a framework.

    There is one, several where a step calls several modules, and none where a framework leaves a single process's
    model as it is.
    """

    def __init__(
        self, ddps: Sequence[DistributedDataParallel], hook: BucketHook | None, *, rebuilds: bool = True
    ) -> None:
        """`hook`, if given, takes all buckets from here. `rebuilds`: DDP changes the order of its buckets once."""
        self.ddps, self.hook = list(ddps), hook
        self._rebuilds, self._rebuilt, self._steps = rebuilds, False, 0
        if hook is not None:
            # DDP insists on the parameter's name and compares annotations, which are strings here: a
            # lambda has no annotations.
            for ddp in self.ddps:
                ddp.register_comm_hook(None, lambda _state, bucket: hook.aggregate(bucket))

    def apart(self) -> AbstractContextManager[None]:
        """Return the context in which a backward does not aggregate gradients."""
        return self.ddps[0].no_sync() if self.ddps else nullcontext()

    def start_step(self) -> None:
        """Begin a step; call it before the step's last backward."""
        if self.hook is not None:
            self.hook.start_step()
        self._steps += 1

    def last_sent(self) -> Mark:
        """Return when the last bucket left; only a hook knows."""
        return self.hook.last_start if self.hook is not None else None

    def backward(self, recorder: Recorder, backward: Callable[[], Any]) -> None:
        """Make the backward that aggregates, and note where it computes and where it only waits."""
        if self.hook is None:
            self._steps += 1
            with recorder.span("backward"):  # the recorder is inactive, or no DDP was found
                backward()
            return
        self.start_step()
        start = recorder.mark()
        backward()
        returned = recorder.mark()
        # The last bucket leaves when the last gradient is ready: the rank's own computation ends.
        recorder.add_span("backward", start, self.hook.last_start)
        recorder.add_span("synchronize", self.hook.last_start, returned)

    def bucket_bytes(self) -> tuple[int, ...] | None:
        """Return the bucket sizes of the last step as the hook saw them; without a hook as the reducer logged them
        last.

        None before the reducer has logged any.
        """
        if self.hook is not None:
            return tuple(self.hook.sizes) or None
        sizes: list[int] = []
        for logged in self._logged():
            text = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
            sizes += [int(size) for size in text.split(",")] if text else []
        return tuple(sizes) or None

    def ready(self) -> bool:
        """Return whether buckets have been rebuilt in the order of the gradients, or never will be."""
        if not self._rebuilt:
            never = not self._rebuilds or self._steps >= REBUILD_BY_STEP
            self._rebuilt = self._steps >= 2 and (
                never or all(logged.get("has_rebuilt_buckets") for logged in self._logged())
            )
        return self._rebuilt

    def close(self) -> None:
        """Release the parameters, to which the reducers listen, and the hook's thread."""
        # Others may still refer to a module: its reducer must stop listening to the parameters now.
        for ddp in self.ddps:
            ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
            for parameter in ddp.module.parameters():
                parameter.grad = None  # may be a view of the reducer's buckets
        if self.hook is not None:
            self.hook.close()
        self.ddps, self.hook = [], None

    def _logged(self) -> list[dict[str, Any]]:
        return [ddp._get_ddp_logging_data() for ddp in self.ddps]  # type: ignore[no-untyped-call]
