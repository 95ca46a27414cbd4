"""A run directory made into a `RunSummary`: its tables, its sentences, what failed."""
