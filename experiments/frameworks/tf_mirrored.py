"""Trains a small network on handwritten digits with TensorFlow: one process, several devices."""

import argparse

import tensorflow as tf
from sklearn.datasets import load_digits


def make_model():
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPool2D(),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPool2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def read_digits():
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    labels = digits.target
    held_out = 297
    return (images[:-held_out], labels[:-held_out]), (images[-held_out:], labels[-held_out:])


def accuracy(model, test_set):
    images, labels = test_set
    return (model(images, training=False).numpy().argmax(1) == labels).mean()


def main(args):
    if not tf.config.list_physical_devices("GPU"):  # without GPUs the processor counts as several devices
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * args.devices
        )
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    strategy = tf.distribute.MirroredStrategy([f"{kind}:{number}" for number in range(args.devices)])
    tf.keras.utils.set_random_seed(0)
    train_set, test_set = read_digits()
    samples = len(train_set[1])
    loader = tf.data.Dataset.from_tensor_slices(train_set).shuffle(samples, seed=0).batch(args.batch)
    loader = strategy.experimental_distribute_dataset(loader)  # splits each batch
    with strategy.scope():
        model = make_model()
        optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)  # the momentum too is one on each replica
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(images, labels):
        with tf.GradientTape() as tape:
            losses = cross_entropy(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses)  # by the whole batch: replicas' gradients are summed
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.reduce_sum(losses)

    @tf.function
    def distributed_train_step(images, labels):
        sums = strategy.run(train_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    for epoch in range(args.epochs):
        total = 0.0
        for images, labels in loader:
            total += distributed_train_step(images, labels)
        mean = total / samples
        print(f"epoch {epoch}: loss {mean:.5f}, accuracy {accuracy(model, test_set):.4f}")
    print(f"accuracy {accuracy(model, test_set):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    parser.add_argument("--devices", type=int, default=2)
    main(parser.parse_args())
