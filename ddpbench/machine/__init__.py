"""The hardware at hand: cores, GPUs, links and addresses, claims on them, and what disturbs them; never torch."""
