"""The `branches` strategy, in which each rank computes one branch of the model."""
