"""Intervals, comparisons and verdicts. Numbers in, numbers out."""
