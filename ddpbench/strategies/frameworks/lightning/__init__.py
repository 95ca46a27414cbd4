"""The `lightning` strategy."""
