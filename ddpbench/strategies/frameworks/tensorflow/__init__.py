"""TensorFlow's own data parallelism: `tf.distribute`, with custom training loops and Keras twins of our models."""
