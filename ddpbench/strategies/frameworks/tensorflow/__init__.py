"""TensorFlow's `tf.distribute`, which trains Keras twins of ddpbench's models, and the strategies' options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class TfMirroredOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of tf.distribute.MirroredStrategy, with its defaults."""

    cross_device_ops: Literal["collective", "reduction_to_one_device"] = "collective"
    """The sum of gradients: by TensorFlow's collective all-reduce over all devices, or on the first device, which
    sends the sums back (`tf.distribute.ReductionToOneDevice`)."""


class TfMultiWorkerOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of tf.distribute.MultiWorkerMirroredStrategy, with its defaults."""

    implementation: Literal["auto", "ring"] = "auto"
    """TensorFlow's choice of how ranks communicate, or its ring over gRPC; on a CPU both are the ring."""
    bytes_per_pack: Annotated[int, limits.PACK_BYTES, Unit("bytes")] = 0
    """Reduce gradients in packs of at least this size, each as soon as its gradients are there; 0: all in one pack."""
    jit_compile: bool = False
    """Compile a rank's forward and backward with XLA."""
