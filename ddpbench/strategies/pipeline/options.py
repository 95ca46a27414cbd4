"""The options of the `pipeline` strategy."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class PipelineOptions(BaseModel, extra="forbid", frozen=True):
    """How a batch goes through the stages."""

    order: Literal["gpipe", "1f1b"] = "gpipe"
    """`gpipe`: forward of all microbatches, then backward of all (Huang et al., NeurIPS 2019). `1f1b`: once the
    pipeline is full a forward and a backward in turn, so that a stage keeps the activations of no more microbatches
    than there are stages from it on (PipeDream-Flush: Narayanan et al., SC'21)."""
    microbatches: int = Field(default=4, ge=1, strict=True)
    """Into so many equal parts the batch is cut."""
