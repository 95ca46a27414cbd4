"""Slots, which are the processes that a launcher such as torchrun or srun starts; one leads the others."""
