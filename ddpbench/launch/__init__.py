"""Plan launches, start and watch ranks, and run a whole sweep, from reading its experiment to its table of results."""
