"""A rank of a launch: the training loop and what is timed around it."""
