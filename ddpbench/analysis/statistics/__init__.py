"""Intervals, comparisons and verdicts, computed from numbers alone."""
