"""Checks a strategy against single-process training."""
