"""A sweep from an experiment to its table: plans, proves, runs round after round, stops, can be resumed."""
