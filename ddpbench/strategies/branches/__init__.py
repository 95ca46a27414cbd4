"""The `branches` strategy: branches of one model."""
