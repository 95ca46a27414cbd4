"""Plans launches, starts ranks, watches them, and runs a sweep from its experiment to its table."""
