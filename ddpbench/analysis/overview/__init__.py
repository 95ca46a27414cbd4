"""Conversion of a run directory into a `RunSummary`: its tables, its sentences, its failures."""
