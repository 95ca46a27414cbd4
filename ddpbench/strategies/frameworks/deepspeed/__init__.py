"""The `deepspeed` strategy: DeepSpeed's engine, with ZeRO's stages 0 to 2, and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class DeepSpeedOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of DeepSpeed's configuration, with its defaults; ZeRO is on, as in its guide."""

    zero_stage: Annotated[Literal[0, 1, 2], Unit("1")] = 1
    """State that ranks share out: nothing (0), the optimizer's state (1), also gradients (2)."""
    accumulate: Annotated[int, limits.PARTS, Unit("parts")] = 1
    """Split each batch into this many parts. Only stage 2 communicates in every part's backward."""
    reduce_bucket_size: Annotated[int, limits.BUCKET_NUMBERS, Unit("numbers")] = 500_000_000
    """Gradient elements that are reduced at once. Stage 0 always takes 500 million."""
    overlap_comm: bool = False
    """Reduce gradients on a separate stream during backward. On the CPU only the order changes."""
    contiguous_gradients: bool = True
    """Copy gradients into one buffer as they become ready."""
