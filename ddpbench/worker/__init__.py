"""Processes started as `python -m ddpbench.worker`: the fork server, ranks, and the slots of an external launcher."""
