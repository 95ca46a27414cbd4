"""Findings on failures."""
