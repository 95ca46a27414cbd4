"""The DDP modules of a replica, with their buckets and the hook that records transfers."""

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
"""Number of steps after which a reducer has rebuilt its buckets, or never will.

Without find_unused_parameters, buckets are rebuilt in the second forward pass, and DDP's logger reports this in the
third.
"""


class Reducers:
    """The DDP modules of a replica: usually one, several if a step calls several modules.

    There is none if a framework does not wrap the model of a single process.
    """

    def __init__(
        self, ddps: Sequence[DistributedDataParallel], hook: BucketHook | None, *, rebuilds: bool = True
    ) -> None:
        """Register `hook`, if given, for all buckets of `ddps`. `rebuilds` is true if DDP rebuilds its buckets once."""
        self.ddps, self.hook = list(ddps), hook
        self._rebuilds, self._rebuilt, self._steps = rebuilds, False, 0
        if hook is not None:
            # A lambda, since DDP checks the annotations of a hook, which are strings in this module; a lambda has none.
            for ddp in self.ddps:
                ddp.register_comm_hook(None, lambda _state, bucket: hook.aggregate(bucket))

    def apart(self) -> AbstractContextManager[None]:
        """Return a context manager in which backward does not aggregate gradients."""
        return self.ddps[0].no_sync() if self.ddps else nullcontext()

    def start_step(self) -> None:
        """Begin a step. Call this before the step's last backward."""
        if self.hook is not None:
            self.hook.start_step()
        self._steps += 1

    def last_sent(self) -> Mark:
        """Return the time at which the last bucket was sent, or None without a hook."""
        return self.hook.last_start if self.hook is not None else None

    def backward(self, recorder: Recorder, backward: Callable[[], Any]) -> None:
        """Call `backward`, which aggregates gradients. Record its computing and its final wait as two spans."""
        if self.hook is None:
            self._steps += 1
            with recorder.span("backward"):  # the recorder is inactive, or no DDP was found
                backward()
            return
        self.start_step()
        start = recorder.mark()
        backward()
        returned = recorder.mark()
        # The last bucket is sent when the last gradient is ready, which ends the rank's own computation.
        recorder.add_span("backward", start, self.hook.last_start)
        recorder.add_span("synchronize", self.hook.last_start, returned)

    def bucket_bytes(self) -> tuple[int, ...] | None:
        """Return the bucket sizes of the last step (bytes), by the hook or DDP's logger; None if not known yet."""
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
        """Remove the DDP modules' hooks from the parameters, and close the communication hook."""
        # Other objects may still refer to a module, so its reducer must stop listening to the parameters now.
        for ddp in self.ddps:
            ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
            for parameter in ddp.module.parameters():
                parameter.grad = None  # may be a view of the reducer's buckets
        if self.hook is not None:
            self.hook.close()
        self.ddps, self.hook = [], None

    def _logged(self) -> list[dict[str, Any]]:
        return [ddp._get_ddp_logging_data() for ddp in self.ddps]  # type: ignore[no-untyped-call]
