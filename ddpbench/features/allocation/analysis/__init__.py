"""Computes job sizes, their costs, and the size to request."""
