"""Speed-up over world size as a curve for each configuration, and scaling laws fitted to the curves."""
