"""The `accelerate` strategy."""
