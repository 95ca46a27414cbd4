"""Slots, which are the processes that a launcher such as torchrun or srun starts. One slot leads the others."""
