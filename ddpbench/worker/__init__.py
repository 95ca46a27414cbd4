"""Processes started as `python -m ddpbench.worker`: ranks, slots (which another launcher starts), the fork server."""
