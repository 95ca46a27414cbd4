"""The `fsdp` strategy: fully_shard."""
