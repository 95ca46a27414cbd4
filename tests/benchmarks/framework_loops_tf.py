"""TensorFlow's training loop as in its guides: no torch; of the harness only the `tf.distribute` strategy.

A process can set up TensorFlow's devices and its place in a cluster only once, so both sides use the strategy that
the harness has made. Model, optimizer, `tf.data` pipeline and functions are this loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from ddpbench.spec import Case
from ddpbench.strategies.frameworks.tensorflow import devices
from ddpbench.workloads import load_workload
from tests.benchmarks.framework_loops import timed
from tests.benchmarks.pairing import Steps

LEARNING_RATE, MOMENTUM = 0.05, 0.9


def digits_net() -> Any:
    """The model of `cnn:large`."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(128, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ]
    )


MODELS = {"cnn:large": digits_net}


def arrays(workload: str) -> tuple[Any, Any]:
    """Return a workload's images, with channels last, and labels."""
    chosen = load_workload(workload)
    dataset: Any = chosen.dataset(chosen.options())
    samples = [dataset[number] for number in range(len(dataset))]
    images = np.stack([image.numpy() for image, _ in samples])
    return np.ascontiguousarray(np.moveaxis(images, 1, -1)), np.array([int(label) for _, label in samples])


def loop(case: Case) -> tuple[Steps, Callable[[], float]]:
    """Return a function that trains for a number of steps, and one that returns the model's loss."""
    strategy = _strategy(case)
    inputs, labels = arrays(case.workload)

    def local_batches(context: Any) -> Any:
        data = tf.data.Dataset.from_tensor_slices((inputs, labels))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(len(labels))
        return data.batch(context.get_per_replica_batch_size(case.global_batch), drop_remainder=True).repeat()

    batches = iter(strategy.distribute_datasets_from_function(local_batches))
    with strategy.scope():
        model = MODELS[case.workload]()
        optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        optimizer.build(model.trainable_variables)  # a tf.function cannot make variables
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = loss_object(labels, model(inputs, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=case.global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_train_step(inputs: Any, labels: Any) -> Any:
        losses = strategy.run(train_step, args=(inputs, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def step() -> None:
        float(distributed_train_step(*next(batches)))  # the harness has each step's loss, too

    def loss() -> float:
        return float(np.mean(loss_object(labels[:64], model(inputs[:64], training=False))))

    return timed(step), loss


def _strategy(case: Case) -> Any:
    """Return the harness's strategy for a case with default options."""
    if case.strategy == "tf_mirrored":
        return devices.mirrored(case.world_size, threads=1, cross_device_ops="collective")
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    return devices.multi_worker(rank, ranks, threads=1, implementation="auto", bytes_per_pack=0)
