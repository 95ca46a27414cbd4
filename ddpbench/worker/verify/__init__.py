"""Proofs, which compare a strategy with training in a single process."""
