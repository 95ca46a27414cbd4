"""A sweep measures the cases of an experiment. It plans and proves them, runs rounds, stops, and can be resumed."""
