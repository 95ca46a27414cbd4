"""The options of the `fsdp` strategy."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class FsdpOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of torch.distributed.fsdp.fully_shard."""

    wrap: Literal["blocks", "whole"] = "blocks"
    """What is gathered at a time: each child of the model's outermost ModuleLists and Sequentials, and then what
    remains; or the whole model at once."""
    reshard_after_forward: bool = True
    """A block's parameters are given up after its forward and gathered again for its backward (ZeRO-3). What remains
    beside the blocks is kept, as torch does by default. False: all is kept until backward is done, which sends less
    and holds more, near ZeRO-2."""
