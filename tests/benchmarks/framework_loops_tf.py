"""TensorFlow's training loops as its guides write them: no harness, no torch; a clock around the steps.

    python tests/benchmarks/framework_loops_tf.py mirrored --replicas 2 --out FILE
    python tests/benchmarks/framework_loops_tf.py multi_worker --out FILE

The second reads its cluster from `TF_CONFIG`, which whoever starts the workers sets for each of them. Data are a
`tf.data` pipeline, distributed by the strategy, of as many samples as the workload's; the first worker writes a JSON
object with its step time and the seconds it spent in warm-up and measured steps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

CONTEXT, CLASSES, HIDDEN, SIDE = 64, 256, 256, 8
LEARNING_RATE, MOMENTUM = 0.05, 0.9


def perceptron() -> Any:
    """What `mlp:small` is."""
    return keras.Sequential(
        [
            keras.Input((CONTEXT,), dtype="uint8"),
            keras.layers.Rescaling(1 / 127.5, offset=-1.0),
            *[keras.layers.Dense(HIDDEN, activation="gelu") for _ in range(3)],
            keras.layers.Dense(CLASSES),
        ]
    )


def digits_net() -> Any:
    """What `cnn:small` is."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def samples(workload: str, count: int) -> tuple[Any, Any]:
    """Inputs and labels of the workload's shapes and types."""
    generator = np.random.default_rng(0)
    if workload == "mlp":
        return generator.integers(0, 256, (count, CONTEXT), dtype=np.uint8), generator.integers(
            0, CLASSES, count
        )
    images = generator.random((count, SIDE, SIDE, 1), dtype=np.float32)
    return images, generator.integers(0, 10, count)


def tf_mirrored_steps(replicas: int, workload: str, local_batch: int, seconds: float) -> dict[str, float]:
    """Steps of one process with as many logical devices."""
    _threads(replicas)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    return _steps(strategy, workload, local_batch, seconds)


def tf_multi_worker_steps(workload: str, local_batch: int, seconds: float) -> dict[str, float]:
    """Steps of this worker of the cluster in `TF_CONFIG`, or of one alone where there is none."""
    _threads(1)
    return _steps(tf.distribute.MultiWorkerMirroredStrategy(), workload, local_batch, seconds)


def _threads(replicas: int) -> None:
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    tf.config.threading.set_intra_op_parallelism_threads(1)


def _steps(
    strategy: Any, workload: str, local_batch: int, seconds: float, warmup: int = 40
) -> dict[str, float]:
    batch = local_batch * strategy.num_replicas_in_sync
    dataset = tf.data.Dataset.from_tensor_slices(samples(workload, max(2048, 4 * batch)))
    dataset = dataset.repeat().batch(batch, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = iter(strategy.experimental_distribute_dataset(dataset.with_options(options)))
    with strategy.scope():
        model = perceptron() if workload == "mlp" else digits_net()
        optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        optimizer.build(
            model.trainable_variables
        )  # not within the tf.function, which cannot make variables there
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = loss_object(labels, model(inputs, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_train_step(inputs: Any, labels: Any) -> Any:
        losses = strategy.run(train_step, args=(inputs, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    began = time.perf_counter()
    first = loss = float("nan")
    for step in range(warmup):
        loss = float(distributed_train_step(*next(batches)))
        first = first if step else loss
        if step == warmup // 2:  # nothing is traced from here on
            half = time.perf_counter()
    # As many steps as fill the time asked for; workers agree, since theirs take equally long on the whole.
    per_step = (time.perf_counter() - half) / (warmup - warmup // 2 - 1)
    steps = _agreed(strategy, max(10, int(seconds / per_step)))
    start = time.perf_counter()
    for _ in range(steps):
        loss = float(distributed_train_step(*next(batches)))
    end = time.perf_counter()
    return {
        "step_s": (end - start) / steps,
        "steps": steps,
        "measured_s": end - began,
        "first_loss": first,
        "loss": loss,
    }


def _agreed(strategy: Any, own: int) -> int:
    """The mean of the workers' numbers, the same on all of them."""

    def replica_mean(value: Any) -> Any:
        # An argument is on no device, and a mean goes where its terms are.
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(value))

    @tf.function
    def agree(value: Any) -> Any:
        return strategy.run(replica_mean, args=(value,))

    (first, *_) = strategy.experimental_local_results(agree(tf.constant(float(own))))
    return round(float(first))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("strategy", choices=["mirrored", "multi_worker"])
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--workload", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--local-batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    cores = sorted(os.sched_getaffinity(0))
    chosen = cores[: arguments.replicas] if arguments.strategy == "mirrored" else [cores[task % len(cores)]]
    os.sched_setaffinity(0, chosen)
    how = (arguments.workload, arguments.local_batch, arguments.seconds)
    if arguments.strategy == "mirrored":
        result = tf_mirrored_steps(arguments.replicas, *how)
    else:
        result = tf_multi_worker_steps(*how)
    if task == 0:
        arguments.out.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
