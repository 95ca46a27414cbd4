"""Proofs: checks of a strategy against single-process training."""
