"""Findings, which are sentences that a run's data support."""
