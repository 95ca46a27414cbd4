"""A sweep, from an experiment to its table: it plans, proves, runs round after round, stops, and can be resumed."""
