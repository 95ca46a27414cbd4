"""Jobs of Slurm that measure an experiment, one for each number of nodes: scripts, submission, following them."""
