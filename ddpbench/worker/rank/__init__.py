"""A rank of a launch: its training loop, the measurements around the loop, and its records."""
