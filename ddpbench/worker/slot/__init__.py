"""A slot under another launcher, and the one that leads."""
