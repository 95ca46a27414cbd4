"""Keras twins of the workloads' models: the same layers in TensorFlow, with a map between their parameters.

Imports neither torch nor TensorFlow before a twin is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Act = Callable[[torch.Tensor], torch.Tensor]
    Shapes = Mapping[str, tuple[int, ...]]
    """A torch model's parameters, by name."""


@dataclass(frozen=True, slots=True)
class KerasLayout:
    """The layouts of a parameter in Keras and in torch."""

    to_keras: Act
    to_torch: Act


@dataclass(frozen=True, slots=True)
class Shared:
    """A parameter that both models have."""

    name: str
    """Its name in the torch model."""
    variable: Any
    """Its variable in the Keras model."""
    layout: KerasLayout


@dataclass(frozen=True, slots=True)
class Twin:
    """A Keras model that computes what a torch model does."""

    model: Any
    parameters: Sequence[Shared]
    """All trained parameters."""
    inputs: Act
    """Converts a batch's inputs to Keras' layout: channels last."""


SAME = KerasLayout(lambda tensor: tensor, lambda tensor: tensor)
DENSE = KerasLayout(lambda weight: weight.t(), lambda kernel: kernel.t())
"""[out, in] to [in, out]."""
CONVOLUTION = KerasLayout(
    lambda weight: weight.permute(2, 3, 1, 0), lambda kernel: kernel.permute(3, 2, 0, 1)
)
"""[out, in, height, width] to [height, width, in, out]."""


def flattened(channels: int, side: int) -> KerasLayout:
    """Return the layout of a dense layer on a flattened image: torch's has channels first, Keras' last."""

    def to_keras(weight: torch.Tensor) -> torch.Tensor:
        return weight.reshape(-1, channels, side, side).permute(2, 3, 1, 0).flatten(0, 2)

    def to_torch(kernel: torch.Tensor) -> torch.Tensor:
        return kernel.reshape(side, side, channels, -1).permute(3, 2, 0, 1).flatten(1)

    return KerasLayout(to_keras, to_torch)


def _both(name: str, layer: Any, kernel: KerasLayout) -> list[Shared]:
    """Return a layer's weight and bias."""
    return [Shared(f"{name}.weight", layer.kernel, kernel), Shared(f"{name}.bias", layer.bias, SAME)]


def gelu(inputs: Any) -> Any:
    """Return the exact GELU by the operations of `tf.nn.gelu`, with float32's root of 2 in a float64 model too."""
    import tensorflow as tf

    return 0.5 * inputs * (1.0 + tf.math.erf(inputs / tf.constant(math.sqrt(2), inputs.dtype)))


def perceptron(shapes: Shapes, dtype: str) -> Twin:
    """Return the twin of `ddpbench.workloads.mlp_model.Perceptron`."""
    import keras
    import numpy as np

    names = [name.removesuffix(".weight") for name in shapes if name.endswith(".weight")]
    dense = {
        name: keras.layers.Dense(
            shapes[f"{name}.weight"][0], activation=None if name == "head" else gelu, dtype=dtype
        )
        for name in names
    }
    # Keras converts a plain number to float32 on its way to a float64 model.
    numbers = keras.layers.Rescaling(np.array(1 / 127.5), offset=-1.0, dtype=dtype)
    context = keras.Input((shapes[f"{names[0]}.weight"][1],), dtype="uint8")
    model = keras.Sequential([context, numbers, *dense.values()])
    shared = [one for name, layer in dense.items() for one in _both(name, layer, DENSE)]
    return Twin(model, shared, lambda context: context)


def digits_net(shapes: Shapes, dtype: str) -> Twin:
    """Return the twin of `ddpbench.workloads.cnn_model.DigitsNet`, with channels last, the only layout on a CPU."""
    import keras

    layers = keras.layers
    wide = {name: shapes[f"{name}.weight"][0] for name in ("conv1", "conv2", "fc1", "fc2")}
    conv1, conv2 = (
        layers.Conv2D(wide[name], 3, padding="same", activation="relu", dtype=dtype)
        for name in ("conv1", "conv2")
    )
    fc1 = layers.Dense(wide["fc1"], activation="relu", dtype=dtype)
    fc2 = layers.Dense(wide["fc2"], dtype=dtype)
    side = math.isqrt(shapes["fc1.weight"][1] // wide["conv2"])  # of the image after both halvings
    model = keras.Sequential(
        [
            keras.Input((4 * side, 4 * side, shapes["conv1.weight"][1]), dtype=dtype),
            conv1,
            layers.MaxPooling2D(2, dtype=dtype),
            conv2,
            layers.MaxPooling2D(2, dtype=dtype),
            layers.Flatten(dtype=dtype),
            fc1,
            fc2,
        ]
    )
    shared = [
        *_both("conv1", conv1, CONVOLUTION),
        *_both("conv2", conv2, CONVOLUTION),
        *_both("fc1", fc1, flattened(wide["conv2"], side)),
        *_both("fc2", fc2, DENSE),
    ]
    return Twin(model, shared, lambda images: images.permute(0, 2, 3, 1))


TWINS: Mapping[str, Callable[[Shapes, str], Twin]] = {"mlp": perceptron, "cnn": digits_net}
"""Makers of twins by workload, called under a strategy's scope with parameters' shapes and a dtype."""


def twin_of(workload: str, model: torch.nn.Module) -> Twin:
    """Return the twin of a workload's model, of the same sizes and dtype, with its own initial values."""
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return TWINS[workload.partition(":")[0]](shapes, dtype)


def copy_to_keras(model: torch.nn.Module, twin: Twin) -> None:
    """Copy a torch model's trained values into its twin, on all of its devices.

    Raises:
        ValueError: the two do not have the same parameters.
    """
    values = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
    names = [shared.name for shared in twin.parameters]
    if sorted(values) != sorted(names):
        raise ValueError(
            f"the Keras twin has the parameters {', '.join(names)}, and the model {', '.join(values)}"
        )
    for shared in twin.parameters:
        shared.variable.assign(shared.layout.to_keras(values[shared.name]).contiguous().cpu().numpy())


def to_torch(array: Any, layout: KerasLayout) -> torch.Tensor:
    """Return a copy of one of the twin's values, or of its gradients, as torch has it."""
    import torch

    return layout.to_torch(torch.tensor(array)).contiguous()
