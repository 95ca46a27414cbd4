"""Find and claim a machine's cores, GPUs and network interfaces, and measure disturbances, without torch."""
