"""Findings on the cost of failures during training."""
