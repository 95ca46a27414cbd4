"""Write, submit and follow the Slurm jobs that measure an experiment, one per number of nodes."""
