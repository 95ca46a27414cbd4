"""Processes started as `python -m ddpbench.worker`: ranks that train and are checked, slots, and the fork server."""
