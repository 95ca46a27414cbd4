"""Conversion of a run directory into a `RunSummary`: tables, sentences and failures."""
