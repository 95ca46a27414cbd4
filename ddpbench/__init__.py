"""ddpbench: what happens to training when ranks, buckets, backend or strategy change, and why."""

__version__ = "0.1.0"
