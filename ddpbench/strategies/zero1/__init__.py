"""The `zero1` strategy: ZeroRedundancyOptimizer."""
