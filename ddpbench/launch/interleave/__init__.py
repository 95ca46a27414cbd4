"""Two sides of a comparison measured in turn, round by round, each by a sweep of its own."""
