"""Slurm jobs that measure an experiment, one per number of nodes: how they are written, submitted and followed."""
