"""Find a machine's cores, GPUs and network interfaces, claim them, and watch what disturbs them. Needs no torch."""
