"""Curves of speed-up over world size for each configuration, and laws fitted to them."""
