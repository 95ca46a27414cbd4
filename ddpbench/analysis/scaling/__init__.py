"""Curves of a configuration over world sizes, and laws fitted to them."""
