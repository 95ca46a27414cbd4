"""Slurm jobs that measure an experiment, one per number of nodes: scripts, submission and following."""
