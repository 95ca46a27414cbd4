"""Compute the job sizes of a proposal, their costs, and the size to request."""
