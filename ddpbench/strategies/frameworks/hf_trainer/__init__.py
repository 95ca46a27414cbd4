"""The `hf_trainer` strategy: the Trainer of Hugging Face transformers, and its options."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class HfTrainerOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of transformers.TrainingArguments, with the Trainer's defaults."""

    accumulate: Annotated[int, limits.PARTS, Unit("parts")] = 1
    """Split each batch into this many parts and communicate only in the last one's backward
    (`gradient_accumulation_steps`)."""
    find_unused_parameters: bool = True
    """Let DDP search the graph in every step for parameters that the loss does not reach
    (`ddp_find_unused_parameters`); on by default in the Trainer, unlike in DDP."""
    broadcast_buffers: bool = True
    """Broadcast rank 0's buffers before every forward pass (`ddp_broadcast_buffers`)."""
