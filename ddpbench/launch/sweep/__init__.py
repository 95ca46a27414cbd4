"""A sweep measures the cases of an experiment: it plans, proves, runs round after round, stops, and can be resumed."""
