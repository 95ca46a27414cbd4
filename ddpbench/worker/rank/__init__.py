"""What a rank runs: the training loop and what is timed around it."""
