"""Keras models (twins) with the same layers as the workloads' torch models, and a map between their parameters."""

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
    """Functions that convert a parameter between torch's layout and Keras'."""

    to_keras: Act
    to_torch: Act


@dataclass(frozen=True, slots=True)
class Shared:
    """A parameter of a torch model and the corresponding variable of its Keras twin."""

    name: str
    """The parameter's name in the torch model."""
    variable: Any
    """The parameter's variable in the Keras model."""
    layout: KerasLayout


@dataclass(frozen=True, slots=True)
class Twin:
    """A Keras model that computes the same as a torch model."""

    model: Any
    parameters: Sequence[Shared]
    """All trained parameters."""
    inputs: Act
    """Function that converts a batch's inputs to Keras' layout, which has channels last."""


SAME = KerasLayout(lambda tensor: tensor, lambda tensor: tensor)
DENSE = KerasLayout(lambda weight: weight.t(), lambda kernel: kernel.t())
"""Layout of a dense layer's weight, which is [out, in] in torch and [in, out] in Keras."""
CONVOLUTION = KerasLayout(
    lambda weight: weight.permute(2, 3, 1, 0), lambda kernel: kernel.permute(3, 2, 0, 1)
)
"""Layout of a convolution's weight, [out, in, height, width] in torch and [height, width, in, out] in Keras."""


def flattened(channels: int, side: int) -> KerasLayout:
    """Return the layout of a dense layer's weight whose input is a flattened image of `channels` x `side` x `side`.

    Channels are first in torch and last in Keras.
    """

    def to_keras(weight: torch.Tensor) -> torch.Tensor:
        return weight.reshape(-1, channels, side, side).permute(2, 3, 1, 0).flatten(0, 2)

    def to_torch(kernel: torch.Tensor) -> torch.Tensor:
        return kernel.reshape(side, side, channels, -1).permute(3, 2, 0, 1).flatten(1)

    return KerasLayout(to_keras, to_torch)


def _both(name: str, layer: Any, kernel: KerasLayout) -> list[Shared]:
    """Pair a layer's weight and bias in Keras with their names in torch; `kernel` is the weight's layout."""
    return [Shared(f"{name}.weight", layer.kernel, kernel), Shared(f"{name}.bias", layer.bias, SAME)]


def gelu(inputs: Any) -> Any:
    """Compute the exact GELU like `tf.nn.gelu`, but with the square root of 2 in the inputs' dtype."""
    import tensorflow as tf

    return 0.5 * inputs * (1.0 + tf.math.erf(inputs / tf.constant(math.sqrt(2), inputs.dtype)))


def perceptron(shapes: Shapes, dtype: str) -> Twin:
    """Return the Keras twin of `ddpbench.workloads.mlp_model.Perceptron`. `shapes` are the torch parameters' shapes."""
    import keras
    import numpy as np

    names = [name.removesuffix(".weight") for name in shapes if name.endswith(".weight")]
    dense = {
        name: keras.layers.Dense(
            shapes[f"{name}.weight"][0], activation=None if name == "head" else gelu, dtype=dtype
        )
        for name in names
    }
    # An array, since Keras would convert a plain number to float32 even in a float64 model.
    numbers = keras.layers.Rescaling(np.array(1 / 127.5), offset=-1.0, dtype=dtype)
    context = keras.Input((shapes[f"{names[0]}.weight"][1],), dtype="uint8")
    model = keras.Sequential([context, numbers, *dense.values()])
    shared = [one for name, layer in dense.items() for one in _both(name, layer, DENSE)]
    return Twin(model, shared, lambda context: context)


def digits_net(shapes: Shapes, dtype: str) -> Twin:
    """Return the Keras twin of `ddpbench.workloads.cnn_model.DigitsNet`. `shapes` are the torch parameters' shapes.

    Channels are last, which is the only layout on a CPU.
    """
    import keras

    layers = keras.layers
    wide = {name: shapes[f"{name}.weight"][0] for name in ("conv1", "conv2", "fc1", "fc2")}
    conv1, conv2 = (
        layers.Conv2D(wide[name], 3, padding="same", activation="relu", dtype=dtype)
        for name in ("conv1", "conv2")
    )
    fc1 = layers.Dense(wide["fc1"], activation="relu", dtype=dtype)
    fc2 = layers.Dense(wide["fc2"], dtype=dtype)
    side = math.isqrt(shapes["fc1.weight"][1] // wide["conv2"])  # the image's side after both halvings
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
"""Functions that make a Keras twin, by workload. They are called in a TensorFlow strategy's scope."""


def twin_of(workload: str, model: torch.nn.Module) -> Twin:
    """Return a Keras twin of a workload's torch model, with the same sizes and dtype, but different initial values."""
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return TWINS[workload.partition(":")[0]](shapes, dtype)


def copy_to_keras(model: torch.nn.Module, twin: Twin) -> None:
    """Copy the values of a torch model's trained parameters into its Keras twin, on all devices.

    Raises:
        ValueError: the two models do not have the same parameters.
    """
    values = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
    names = [shared.name for shared in twin.parameters]
    if sorted(values) != sorted(names):
        raise ValueError(
            f"the Keras model has the parameters {', '.join(names)}, but the torch model has {', '.join(values)}"
        )
    for shared in twin.parameters:
        shared.variable.assign(shared.layout.to_keras(values[shared.name]).contiguous().cpu().numpy())


def to_torch(array: Any, layout: KerasLayout) -> torch.Tensor:
    """Return a copy of a Keras parameter or gradient as a tensor in torch's layout."""
    import torch

    return layout.to_torch(torch.tensor(array)).contiguous()
