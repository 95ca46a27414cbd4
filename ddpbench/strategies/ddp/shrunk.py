"""DDP with smaller default bucket caps, for a replay whose gradients are shrunk."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_FIRST = "_DEFAULT_FIRST_BUCKET_BYTES"


def shrunk(by: int) -> type[DistributedDataParallel]:
    """Return a DDP class whose default caps for the first bucket and for the others are divided by `by`.

    DDP's arguments cannot set them separately, so both are set right before the buckets are made, and torch's setting
    is restored.
    """

    class Shrunk(DistributedDataParallel):
        def _ddp_init_helper(self, *arguments: Any, **named: Any) -> Any:
            self.bucket_bytes_cap //= by
            usual = getattr(dist, _FIRST)
            config = getattr(self, "_bucket_config", None)
            if config is not None:  # a newer torch has both caps there
                self._bucket_config = dataclasses.replace(
                    config,
                    bucket_bytes_cap=config.bucket_bytes_cap // by,
                    first_bucket_bytes_cap=config.first_bucket_bytes_cap // by,
                )
            setattr(dist, _FIRST, usual // by)
            try:
                return super()._ddp_init_helper(*arguments, **named)  # type: ignore[no-untyped-call]
            finally:
                setattr(dist, _FIRST, usual)

    return Shrunk
