"""Findings on the cost of failures."""
