"""The data, model and training step of a rank."""
