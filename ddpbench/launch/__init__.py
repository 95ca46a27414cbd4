"""Plan launches, start and watch ranks, and run a sweep from its experiment to its table."""
