"""Ranks that Ray Train starts: the process that starts Ray, the parent of each rank's process, and the rank."""
