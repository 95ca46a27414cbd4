"""Merge several runs into one, for `ddpbench merge`."""
