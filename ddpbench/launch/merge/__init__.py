"""Several runs made into one, as `ddpbench merge` does it."""
