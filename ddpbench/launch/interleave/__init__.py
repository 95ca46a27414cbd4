"""Measure two sides of a comparison in turn, round by round, each in a separate sweep."""
