"""The `pipeline` strategy: stages of one model, and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class PipelineOptions(BaseModel, extra="forbid", frozen=True):
    """Order of microbatches in the stages: `gpipe` (Huang et al., NeurIPS 2019) or `1f1b` (Narayanan et al., SC'21)."""

    order: Literal["gpipe", "1f1b"] = "gpipe"
    """All forwards before all backwards (`gpipe`), or alternately, which stores fewer activations (`1f1b`)."""
    microbatches: Annotated[int, limits.PARTS, Unit("parts")] = 4
    """Number of equal parts that a pipeline's batch is split into."""
    replicas: Annotated[int, limits.REPLICAS, Unit("replicas")] = 1
    """Number of pipelines, each of neighbouring ranks with a share of the batch."""
