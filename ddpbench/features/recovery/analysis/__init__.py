"""Findings about the cost of failures during training."""
