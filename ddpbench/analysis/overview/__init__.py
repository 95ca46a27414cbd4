"""Turn a run directory into a `RunSummary`, with tables, sentences and failures."""
