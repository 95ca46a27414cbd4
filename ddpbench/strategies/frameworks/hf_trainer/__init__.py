"""The `hf_trainer` strategy: the Trainer of Hugging Face transformers, and its options."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class HfTrainerOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of transformers.TrainingArguments, with the Trainer's defaults."""

    accumulate: Annotated[int, limits.PARTS, Unit("parts")] = 1
    """Split each batch into this many parts and communicate only in the last part's backward."""
    find_unused_parameters: bool = True
    """Search the graph in every step for parameters that the loss does not reach."""
    broadcast_buffers: bool = True
    """Broadcast rank 0's buffers, such as BatchNorm's statistics, before every forward pass."""
