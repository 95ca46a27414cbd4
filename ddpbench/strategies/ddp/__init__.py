"""The `ddp` strategy: DistributedDataParallel."""
