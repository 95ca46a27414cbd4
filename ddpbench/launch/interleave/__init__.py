"""Measure the two sides of a comparison alternately, round by round, each in a separate sweep."""
