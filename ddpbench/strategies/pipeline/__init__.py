"""The `pipeline` strategy: stages of one model, and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class PipelineOptions(BaseModel, extra="forbid", frozen=True):
    """The way of a batch through the stages."""

    order: Literal["gpipe", "1f1b"] = "gpipe"
    """Forward of all microbatches, then backward of all (`gpipe`, Huang et al., NeurIPS 2019); or forward and backward
    alternately once the pipeline is full, which stores fewer activations (`1f1b`, Narayanan et al., SC'21)."""
    microbatches: Annotated[int, limits.PARTS, Unit("parts")] = 4
    """Number of equal parts that a pipeline's batch is split into."""
    replicas: Annotated[int, limits.REPLICAS, Unit("replicas")] = 1
    """Number of pipelines, each of neighbouring ranks and with its share of the batch; gradients of equal stages are
    averaged over them."""
