"""TensorFlow's `tf.distribute`, which trains Keras twins of ddpbench's models, and the strategies' options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class TfMirroredOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of tf.distribute.MirroredStrategy, with its defaults."""

    cross_device_ops: Literal["collective", "reduction_to_one_device"] = "collective"
    """Summation of gradients: by a collective all-reduce, or on the first device."""


class TfMultiWorkerOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of tf.distribute.MultiWorkerMirroredStrategy, with its defaults."""

    implementation: Literal["auto", "ring"] = "auto"
    """TensorFlow's choice of communication, or its ring over gRPC (on CPUs always)."""
    bytes_per_pack: Annotated[int, limits.PACK_BYTES, Unit("bytes")] = 0
    """Reduce gradients in packs of at least this size as they become ready. 0 means one pack."""
    jit_compile: bool = False
    """Compile forward and backward with XLA."""
