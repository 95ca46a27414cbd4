"""The `ray_train` strategy: Ray Train's TorchTrainer starts the ranks, and its prepare_model wraps the model."""
