"""The `deepspeed` strategy: DeepSpeed's engine, with ZeRO's stages 0 to 2, and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class DeepSpeedOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of DeepSpeed's configuration, with its defaults; ZeRO is on, as in its guide."""

    zero_stage: Annotated[Literal[0, 1, 2], Unit("1")] = 1
    """State that ranks share out: nothing (0), the optimizer's state (1), gradients too (2); `stage`."""
    accumulate: Annotated[int, limits.PARTS, Unit("parts")] = 1
    """Split each batch into this many parts with one update (`gradient_accumulation_steps`); stage 2 communicates in
    every part's backward, the others in the last one's."""
    reduce_bucket_size: Annotated[int, limits.BUCKET_NUMBERS, Unit("numbers")] = 500_000_000
    """Gradients that are reduced at once; stage 0 always has buckets of 500 million."""
    overlap_comm: bool = False
    """Reduce gradients on a stream during backward; on the CPU, where reductions block, only the order changes."""
    contiguous_gradients: bool = True
    """Copy gradients into one buffer as they become ready."""
