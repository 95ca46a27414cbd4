"""Analysis of instrumented steps: losses of efficiency, times of transfers, and one step as it happened."""
