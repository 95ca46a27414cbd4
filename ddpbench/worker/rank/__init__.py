"""A rank of a launch, with the training loop and what is timed around it."""
