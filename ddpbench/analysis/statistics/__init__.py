"""Intervals, comparisons, verdicts and laws. Numbers in, numbers out."""
