"""Slots, the processes that a launcher such as torchrun or srun starts, and the slot that leads the others."""
